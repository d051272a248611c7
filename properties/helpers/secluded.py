"""A controller for tests, in namespaces of its own: without a network, under an unknown host name.

It runs a name server that never answers. It prints the verdict of a case, the questions that the
name server got, and the sockets that listen outside of loopback.
"""

import json
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from harness.case import parse
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
SERVER = ("127.0.0.1", 53)


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    socket.sethostname("nobody.knows.me")
    questions: list[str] = []
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver, RankPool(2) as pool:
        resolver.write(f"nameserver {SERVER[0]}\n")
        resolver.flush()
        subprocess.run(["mount", "--bind", resolver.name, "/etc/resolv.conf"], check=True)
        threading.Thread(target=listen, args=(questions,), daemon=True).start()
        verdict = evaluate(CASE, "native-local", pool).verdict.name
        print(json.dumps({"verdict": verdict, "questions": questions, "open": open_sockets()}))  # noqa: T201


def listen(questions: list[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(SERVER)
        while True:
            questions.append(repr(server.recv(512)))


def open_sockets() -> list[str]:
    """List sockets that listen on an address other than loopback; only this pool has any here."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *_ = line.split()
            if state == "0A" and not address.startswith("0100007F:"):
                found.append(address)
    return found


if __name__ == "__main__":
    main()
