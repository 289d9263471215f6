"""The program `accelerate`, with the interpreter that `PYTHON_EXEC` names for the scripts that it launches."""

from __future__ import annotations

import os
import socket
import sys

from accelerate.commands.accelerate_cli import main

if __name__ == "__main__":
    sys.executable = os.environ["PYTHON_EXEC"]
    if "--multi_gpu" in sys.argv and "--main_process_port" not in sys.argv:
        with socket.socket() as probe:  # several pages are run at once
            probe.bind(("127.0.0.1", 0))
            sys.argv[2:2] = ["--main_process_port", str(probe.getsockname()[1])]
    main()
