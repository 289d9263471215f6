"""Runs torchrun, and exits with status 75 instead of 1 if the run was preempted."""

import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

PREEMPTED = 75

if __name__ == "__main__":
    try:
        main()
    except SignalException as error:  # torchrun itself received the signal, and has passed it on
        sys.exit(PREEMPTED if error.sigval == signal.SIGTERM else 1)
    except ChildFailedError as error:
        if any(failure.exitcode != PREEMPTED for failure in error.failures.values()):
            raise
        sys.exit(PREEMPTED)
