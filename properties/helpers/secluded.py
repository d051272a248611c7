"""A controller in namespaces of its own: no network, a name that nobody knows, and a name server
that never answers. It says how a case went, and what that server was asked.
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
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as told, RankPool(2) as pool:
        told.write(f"nameserver {SERVER[0]}\n")
        told.flush()
        subprocess.run(["mount", "--bind", told.name, "/etc/resolv.conf"], check=True)
        threading.Thread(target=listen, args=(questions,), daemon=True).start()
        verdict = evaluate(CASE, "native-local", pool).verdict.name
        print(json.dumps({"verdict": verdict, "questions": questions, "open": reachable()}))  # noqa: T201


def listen(questions: list[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(SERVER)
        while True:
            questions.append(repr(mute.recv(512)))


def reachable() -> list[str]:
    """Sockets that listen on any address but that of loopback; all here are this pool's."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *_ = line.split()
            if state == "0A" and not address.startswith("0100007F:"):
                found.append(address)
    return found


if __name__ == "__main__":
    main()
