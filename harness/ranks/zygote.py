"""A process that has imported torchrun once, and from which launches are forked.

To import it is most of what a launch costs, and every fault takes a fresh launch. A process that
launches a second time starts one of these beside it, which goes when it goes. A forked launch is
what a started one would be: a session, an environment, a folder and an output of its own.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path

from harness.importing import without_a_search_for_garbage
from harness.ranks import leash
from harness.ranks.endings import ending_of
from harness.ranks.leash import ADDRESS, CONTROLLER, PR_SET_PDEATHSIG
from harness.ranks.place import LONGEST_ADDRESS

# What a launch says first, with its number; whoever forked it says the rest.
BEGAN = "began"
# Room for the address of a launch, in the environment that others read of a process.
NOWHERE = "-" * LONGEST_ADDRESS
# In /proc/PID/stat behind the name: where the environment begins in memory.
ENV_START = 47


def _serve(controller: int) -> None:
    """Fork launches until the controller is gone, or wants no more; come back in each of them."""
    orders = socket.socket(fileno=0)
    # By what becomes readable when a launch ends, and then when its controller knows.
    running: dict[int, tuple[int, socket.socket]] = {}
    told: dict[int, tuple[int, socket.socket]] = {}
    wanted = [0]
    while wanted or running or told:
        ready, _, _ = select.select([controller, *wanted, *running, *told], [], [])
        if controller in ready:
            os._exit(1)
        for handle in told.keys() & set(ready):
            pid, channel = told.pop(handle)
            os.waitpid(pid, 0)
            channel.close()
        for handle in running.keys() & set(ready):
            pid, channel = running.pop(handle)
            os.close(handle)
            # It stays until its controller knows: till then nobody else gets its number.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert ended
            code = ended.si_status * (1 if ended.si_code == os.CLD_EXITED else -1)
            # Its controller may have given it up.
            with contextlib.suppress(OSError):
                channel.sendall(f"{code}\n".encode())
            told[channel.fileno()] = pid, channel
        if 0 not in ready:
            continue
        word, handed, _, _ = socket.recv_fds(orders, 1, 2)
        if not word:
            wanted = []
            continue
        channel, output = socket.socket(fileno=handed[0]), handed[1]
        order = json.loads(channel.makefile("r").readline())
        pid = os.fork()
        if not pid:
            for _, other in (*running.values(), *told.values()):
                other.close()
            for handle in running:
                os.close(handle)
            orders.detach()
            _become(order["words"], order["environment"], order["folder"], output)
            with channel:
                channel.sendall(f"{BEGAN} {os.getpid()}\n".encode())
            return
        os.close(output)
        running[ending_of(pid)] = pid, channel


def _become(words: list[str], environment: dict[str, str], folder: str, output: int) -> None:
    """What `python -m harness.ranks.leash`, started with these, would be."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for theirs, ours in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(theirs, ours)
    os.close(nothing)
    os.close(output)
    _call_it(os.environ[ADDRESS], environment[ADDRESS])
    os.environ.clear()
    os.environ.update(environment)
    del os.environ[CONTROLLER]
    os.chdir(folder)
    sys.argv = [leash.__file__, *words]
    # What was cached of places that another environment named.
    importlib.invalidate_caches()
    tempfile.tempdir = None


def _call_it(old: str, new: str) -> None:
    """Have others read of this process whose launch it belongs to, as of one that was started."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ENV_START])
    at = Path("/proc/self/environ").read_bytes().index(f"{ADDRESS}={old}".encode())
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(began + at)
        memory.write(f"{ADDRESS}={new}".encode().ljust(len(f"{ADDRESS}={old}"), b"\0"))


def main() -> None:
    controller = leash.controller()
    if controller is None:
        return
    # Somebody may have stopped us by the time that the controller is gone.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    # Where it cannot be done this ends here, and every launch is started.
    _call_it(NOWHERE, NOWHERE)
    with without_a_search_for_garbage():
        importlib.import_module("torch.distributed.run")
        gc.freeze()
    served = os.getpid()
    _serve(controller)
    if os.getpid() != served:
        leash.hold(controller)


if __name__ == "__main__":
    main()
