#!/usr/bin/env python3
"""An NCCL that travels: ci/nccl.py WHEEL SM [OUT] takes the library out of its wheel, for one GPU.

An NCCL of 2.30 or newer lets several ranks share a GPU. It has kernels for every GPU, 200 MB of
them. It empties the kernels of other GPUs than SM, such as 90 for an H100 or H200, and packs the
rest into OUT, or libnccl.so.2.xz: some 40 MB. `NCCL=libnccl.so.2.xz ci/gpu` unpacks it and has
every process load it in the place of torch's own. Neither a network nor a GPU is needed.
"""

import lzma
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from tier.archive import replace

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
# The format in which the compiler writes kernels for several GPUs: a header, and then entries with
# headers of their own.
HEADER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
MAGIC = struct.pack("<I", 0xBA55ED50)


def main() -> None:
    if len(sys.argv) not in (3, 4) or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    wheel, sm, out = sys.argv[1], int(sys.argv[2]), Path([*sys.argv, "libnccl.so.2.xz"][3])
    try:
        library = bytearray(ZipFile(wheel).read(LIBRARY))
    except (OSError, BadZipFile, KeyError) as error:
        sys.exit(f"ci/nccl.py: {wheel}: holds no {LIBRARY}: {error}")
    kept = emptied = 0
    for start, size, gpu in kernels(library):
        if gpu == sm:
            kept += size
        else:
            library[start : start + size] = bytes(size)
            emptied += size
    if not kept:
        sys.exit(f"ci/nccl.py: {wheel}: has no kernels for sm_{sm}")
    replace(out, lzma.compress(bytes(library), preset=1))
    print(
        f"{out}: {out.stat().st_size >> 20} MB; kernels of sm_{sm} {kept >> 20} MB, "
        f"of others {emptied >> 20} MB emptied"
    )


def kernels(library: bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield the start and size of each group of kernels, and the GPU that it is for."""
    at = library.find(MAGIC)
    while at >= 0:
        _, version, header_size, size = HEADER.unpack_from(library, at)
        end = at + header_size + size
        # The four bytes of MAGIC may occur by chance.
        if (version, header_size) != (1, HEADER.size) or end > len(library):
            at = library.find(MAGIC, at + 1)
            continue
        entry = at + header_size
        while entry < end:
            _, _, entry_header_size, payload, *_, gpu = ENTRY.unpack_from(library, entry)
            yield entry + entry_header_size, payload, gpu
            entry += entry_header_size + payload
        at = library.find(MAGIC, end)


if __name__ == "__main__":
    main()
