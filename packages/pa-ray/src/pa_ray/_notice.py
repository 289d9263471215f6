"""The notice of Ray that a machine of the run will be taken away."""

from __future__ import annotations

from functools import cached_property

from pa_core import SaveAndContinue
from pa_ray._session import Session, find_session


class RayPreemptionNotice:
    """Tells a run that Ray will lose one of its machines, so that it saves a training state in time.

    Pass an instance to ``SaveTrainingStateCallback(notices=[...])``, together with ``ReportToRay`` in ``callbacks``.
    Once Ray knows that a machine will be taken away, the run saves a state, reports it to Ray, and continues to train,
    since Ray starts the processes again on other machines when the machine is gone. It does not end, because for Ray a
    function that returns is complete.

    All processes of the run wait for each other in each question, which takes some milliseconds. If an update takes
    less than a second, pass a larger ``ask_every`` to ``SaveTrainingStateCallback``, so that there is about one
    question per second. Outside of Ray Train, for example in Ray Tune or with ``torchrun``, there is never a notice.

    Example:
        >>> from pa_core import SaveTrainingStateCallback
        >>> from pa_ray import RayPreemptionNotice
        >>> notice = RayPreemptionNotice()
        >>> save = SaveTrainingStateCallback("states", notices=[notice], ask_every=20)
        >>> notice.ask() is None  # not on Ray
        True
    """

    @cached_property
    def _session(self) -> Session | None:
        return find_session()

    def ask(self) -> SaveAndContinue | None:
        """Return that a state has to be saved if Ray will lose a machine of this run; every process calls it.

        Example:
            >>> from pa_ray import RayPreemptionNotice
            >>> RayPreemptionNotice().ask() is None  # not on Ray
            True
        """
        if self._session != "train":
            return None
        import ray.train

        info = ray.train.get_preemption_info()
        if info is None:
            return None
        nodes = ", ".join(node[:8] for node in info.preempted_node_ids)
        return SaveAndContinue(f"Ray loses the nodes {nodes}")
