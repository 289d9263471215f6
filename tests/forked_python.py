"""Stands in for `python`: what it runs is forked from a process that has imported torch already.

`python -IS forked_python.py SOCKET [-u] (SCRIPT | -m MODULE) ARGUMENT...` asks `tests/fork_server.py`, passes signals
on, and ends as the script ends. It imports little, because it is started for each process that a test starts.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run a script, and end with its exit status or by the signal that ended it."""
    address, *arguments = sys.argv[1:]
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    request = {"arguments": arguments, "folder": folder, "environment": dict(os.environ)}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(text)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _frame: server.sendall(bytes([number])))
        status = int.from_bytes(server.recv(4), "big", signed=True)
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
