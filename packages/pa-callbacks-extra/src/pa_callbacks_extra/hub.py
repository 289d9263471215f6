"""Pushes models to the Hugging Face Hub."""

from __future__ import annotations

import importlib.metadata
import math
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from typing_extensions import override

from pa_callbacks_extra.hub_folder import MARKS, Content, Moment, fingerprint_of, write_folder
from pa_callbacks_extra.hub_process import HubError, HubProcess
from pa_callbacks_extra.hub_uploads import Failure, HubUploads, Push
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    NonFiniteLossError,
    SaveBestModelCallback,
    TrainerCallback,
    TrainingPreempted,
    UnsupportedConfigurationError,
)
from pa_core.callbacks import watched_value
from pa_core.distributed import rank
from pa_core.user_warnings import warn_user
from pa_distributed import run_while_others_wait, without_secrets

_SECONDS_TO_PREPARE = 60.0
_MAJOR_VERSION = 2
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


class PushToHubCallback(TrainerCallback):
    """Pushes the model of a run to the Hugging Face Hub: weights, a model card and the settings.

    Use it to share a model, or to keep it when the machine is gone; ``push_to_hub`` does the same after a run. It needs
    the extra ``hub`` (``pip install "pa-callbacks-extra[hub]"``), and a token with the right to write: call
    ``hf auth login`` once, or set ``HF_TOKEN``. When a run starts, the first process checks the token, and creates the
    repository if it is missing.

    The repository then contains ``model.safetensors``, which any program can load; ``README.md``, the model card, with
    the metrics, the settings, the fingerprint of the run and the code to load the weights; and ``settings.json``. What
    you write above or below the generated part of the card on the Hub stays there.

    The files are written to a folder on this machine when the model is pushed, and removed afterwards. Another process
    sends them while the training continues. If a better model comes before that, it is sent next, and the models
    between them are left out. A failed push is tried again until the time limit, and is never an error: a warning says
    what to run to push the files later. A resumed run pushes only files that are not on the Hub yet.

    Args:
        repo_id: The repository, with its owner, for example ``"me/digits"``.
        when: ``"end"``, the default, pushes the model when a run ends without an error; this is the best model if a
            ``SaveBestModelCallback`` has loaded it. ``"best"`` pushes the model whenever a ``SaveBestModelCallback``,
            which must be before this callback in the list, has saved a better model.
        private: Whether only the owner can see the repository. The default is True.
        folder: A folder on this machine for files that are not pushed yet. Missing folders are created. The default is
            ``hub`` in the working directory.
        config: Settings to record in addition to the run config; they override its entries. The default adds none.
        add_files: A function that writes more files, for example a tokenizer. The first process calls it with the
            folder before each push. The default, None, adds no files.
        trainable_only: Whether frozen parameters are left out, as in ``save_model``. The default is False.
        time_limit: The number of seconds in which a push must be complete, and the longest time that a run waits for
            it at its end. The default, 600, lets 10 GB through at 20 MB a second.

    Attributes:
        repo_id: As given, like the other arguments.

    Raises:
        ConfigurationError: An argument cannot be used. ``train()`` raises it when the Hub rejects the token or the name
            of the repository, when the repository exists and is not private or public as requested, or when there is no
            ``SaveBestModelCallback`` before this callback, with ``when="best"``.
        UnsupportedConfigurationError: ``huggingface_hub`` is not installed or too old; or, from ``train()``, the Hub
            does not answer, unless the run resumes.

    Example:
        >>> from pa_callbacks_extra import PushToHubCallback
        >>> from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback
        >>> callbacks = [*DEFAULT_CALLBACKS, SaveBestModelCallback("best.pt"), PushToHubCallback("me/digits")]
    """

    joins_sanity_evaluation = False
    only_observes = True

    def __init__(
        self,
        repo_id: str,
        when: Literal["end", "best"] = "end",
        private: bool = True,
        *,
        folder: str | Path = "hub",
        config: Mapping[str, object] = MappingProxyType({}),
        add_files: Callable[[Path], object] | None = None,
        trainable_only: bool = False,
        time_limit: float = 600.0,
    ) -> None:
        _check(repo_id, folder, private, time_limit)
        if when not in ("end", "best"):
            raise ConfigurationError(f'when must be "end" or "best", got {when!r}.')
        self.repo_id = repo_id
        self.when = when
        self.private = private
        self.folder = folder
        self.config = config
        self.add_files = add_files
        self.trainable_only = trainable_only
        self.time_limit = time_limit
        self._uploads = HubUploads(repo_id, time_limit)
        self._pushed_best: tuple[float | None, int | None] = (None, None)
        self._last_folder: str | None = None
        self._warned_of: Failure | None = None
        self._is_lost = False
        self._started_in = Path()

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Check the token and create the repository, on the first process.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: The Hub rejects the token or the repository, or there is no ``SaveBestModelCallback``
                before this callback, with ``when="best"``.
            UnsupportedConfigurationError: The Hub does not answer, and the run does not resume.
        """
        if self.when == "best":
            self._saves_best(trainer)
        self._started_in = Path.cwd()
        self._is_lost, self._pushed_best, self._last_folder = False, (None, None), None
        self._uploads = HubUploads(self.repo_id, self.time_limit)
        resumes = trainer.resume_from is not None
        run_while_others_wait(partial(self._prepare, resumes) if rank() == 0 else None)
        trainer.enter_run_context(self._ending(trainer))

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Push the model, if ``SaveBestModelCallback`` has just saved it.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._push_if_best(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Push the model, if ``SaveBestModelCallback`` has just saved it, and warn about a failed push.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._push_if_best(trainer)
        failure = self._uploads.failure
        if failure is not None and failure is not self._warned_of:
            warn_user(f"{_not_pushed(failure, self.repo_id, self.private)} The run continues.")
        self._warned_of = failure

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note whether a loss was not finite, because such a model is not pushed.

        Args:
            trainer: The trainer.
            **kwargs: ``error``, the error that stops the run.
        """
        self._is_lost = isinstance(kwargs["error"], NonFiniteLossError)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return which best model was pushed or is being pushed, for a training state.

        The trainer calls it when it captures a training state, so you need not call it yourself.

        Returns:
            A dictionary with the keys "value", "epoch" and "folder"; each is None before the first push.

        Example:
            >>> from pa_callbacks_extra import PushToHubCallback
            >>> PushToHubCallback("me/digits", "best").state_dict()
            {'value': None, 'epoch': None, 'folder': None}
        """
        value, epoch = self._pushed_best
        return {"value": value, "epoch": epoch, "folder": self._last_folder}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Push the best model of the resumed run, if its push was not complete.

        The trainer calls it on every process when a run resumes, after ``on_training_run_start``, so you need not call
        it yourself. The first process pushes, if the files are still in the folder.

        Args:
            state_dict: The result of ``state_dict``.

        Example:
            >>> from pa_callbacks_extra import PushToHubCallback
            >>> push = PushToHubCallback("me/digits", "best")
            >>> push.load_state_dict({"value": 0.25, "epoch": 3, "folder": "update_300"})
            >>> push.state_dict()["epoch"]
            3
        """
        self._pushed_best = (state_dict["value"], state_dict["epoch"])
        self._last_folder = state_dict["folder"]
        if self._last_folder is not None and rank() == 0:
            folder = _folder_of(self._started_in / self.folder, self.repo_id, self._last_folder)
            if folder.exists():
                self._uploads.add(Push(folder, f"Best model, from epoch {state_dict['epoch']}", MARKS))

    def _prepare(self, resumes: bool) -> None:
        try:
            _prepare(self.repo_id, self.private)
        except UnsupportedConfigurationError as error:
            if not resumes:
                raise
            warn_user(f"{error.problem} ({error.given}) The run continues, and pushes to it later.")

    def _saves_best(self, trainer: AnyTrainer) -> SaveBestModelCallback:
        """Return the callback that decides which model is the best."""
        callbacks: list[object] = list(trainer.callback_handler.callbacks)
        before = callbacks[: callbacks.index(self)]
        found = [callback for callback in before if isinstance(callback, SaveBestModelCallback)]
        if len(found) != 1:
            raise ConfigurationError(
                'PushToHubCallback with when="best" needs to know which model is the best.',
                given=f"{len(found) or 'no'} SaveBestModelCallback before it in the list of callbacks",
                expected="one",
                do='Put one SaveBestModelCallback before it, or pass when="end".',
            )
        return found[0]

    def _push_if_best(self, trainer: AnyTrainer) -> None:
        if self.when != "best":
            return
        saves_best = self._saves_best(trainer)
        best, epoch = saves_best.best, trainer.run_history.current_epoch
        is_new = best.epoch == epoch and (best.value, best.epoch) != self._pushed_best
        if best.value is None or not is_new or watched_value(trainer, saves_best.watch_metric) != best.value:
            return
        self._pushed_best = (best.value, epoch)
        moment = Moment(epoch, f"from epoch {epoch}", f"the best {saves_best.watch_metric} so far, {best.value:.6g}")
        self._push(trainer, moment, None, f"Best model, {moment.name}")

    def _push(self, trainer: AnyTrainer, moment: Moment, fingerprint: str | None, message: str) -> None:
        """Write a folder and push it; every process has to call this."""
        self._last_folder = f"update_{trainer.num_updates_completed}"
        folder = _folder_of(self._started_in / self.folder, self.repo_id, self._last_folder)
        content = Content(self.repo_id, self.config, self.add_files, self.trainable_only)
        try:
            write_folder(trainer, folder, content, moment, fingerprint)
        except Exception as error:  # of the disk, or of the user's function
            warn_user(
                f"The model was not pushed to {self.repo_id}, because its files could not be written to {folder} "
                f"({type(error).__name__}: {error}). The run continues. Afterwards, call push_to_hub(trainer, "
                f"{self.repo_id!r})."
            )
            return
        if rank() == 0:
            self._uploads.add(Push(folder, message, MARKS))

    @contextmanager
    def _ending(self, trainer: AnyTrainer) -> Generator[None]:
        try:
            yield
        except BaseException as exception:
            failure = self._uploads.end("The run ended before.")
            if failure is not None and not isinstance(exception, TrainingPreempted):
                warn_user(_not_pushed(failure, self.repo_id, self.private))
            raise
        if self.when == "end":
            if self._is_lost and not _has_loaded_best(trainer):
                if rank() == 0:
                    warn_user(f"The model was not pushed to {self.repo_id}, because a loss was not finite.")
                return
            moment = _moment_of_end(trainer)
            self._push(trainer, moment, fingerprint_of(trainer), f"Model {moment.name}")
        run_while_others_wait(partial(self._wait, trainer) if rank() == 0 else None)

    def _wait(self, trainer: AnyTrainer) -> None:
        if self.when == "best":
            self._uploads.retry()
        failure = self._uploads.wait()
        if failure is not None:
            warn_user(_not_pushed(failure, self.repo_id, self.private))
        elif self._uploads.url:
            trainer.print(f"Pushed the model to {without_secrets(self._uploads.url)}", flush=True)


def push_to_hub(
    source: AnyTrainer | str | Path,
    repo_id: str,
    *,
    private: bool = True,
    folder: str | Path = "hub",
    config: Mapping[str, object] = MappingProxyType({}),
    add_files: Callable[[Path], object] | None = None,
    trainable_only: bool = False,
    time_limit: float = 600.0,
) -> str:
    """Push the model of a trainer, or a folder that was not pushed, to the Hugging Face Hub.

    You call it after ``train()``, or with the folder that ``PushToHubCallback`` could not push. Every process may
    call it, and the first process pushes while the others wait; if the model is sharded, every process must call it.
    See ``PushToHubCallback`` for the files, and for the token.

    Args:
        source: The trainer, or a folder, which is pushed as it is and kept.
        repo_id: The repository, with its owner, for example ``"me/digits"``. It is created if it is missing.
        private: Whether only the owner can see the repository. The default is True.
        folder: A folder on this machine for the files of a trainer until they are pushed. The default is ``hub`` in the
            working directory.
        config: Settings to record in addition to the run config. The default adds none.
        add_files: A function that writes more files; the first process calls it with the folder. The default is None.
        trainable_only: Whether frozen parameters are left out. The default is False.
        time_limit: The number of seconds in which the push must be complete; the default is 600.

    Returns:
        The address of the commit on the Hub; an empty string on processes other than the first.

    Raises:
        ConfigurationError: An argument cannot be used, or the Hub rejects it, the token or the files.
        UnsupportedConfigurationError: ``huggingface_hub`` is not installed or too old, or the push was not complete in
            time. The files are kept.

    Example:
        >>> from pa_callbacks_extra import push_to_hub
        >>> push_to_hub("hub", "digits")
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: repo_id must be "OWNER/NAME", got 'digits'.
    """
    _check(repo_id, folder, private, time_limit)
    if isinstance(source, AnyTrainer):
        if cast("object", source.run_config) is None:
            raise ConfigurationError(
                "Nothing has been trained or evaluated yet, so the settings of the run are unknown."
            )
        files = _folder_of(folder, repo_id, f"update_{source.num_updates_completed}")
        moment = _moment_of_end(source)
        message = f"Model {moment.name}"
        run_while_others_wait(partial(_prepare, repo_id, private) if rank() == 0 else None)
        write_folder(source, files, Content(repo_id, config, add_files, trainable_only), moment, fingerprint_of(source))
    else:
        files, message = Path(source), "Model"
        if not files.is_dir():
            raise ConfigurationError(f"There is no folder {str(files)!r}. Pass a trainer, or a folder with a model.")
        run_while_others_wait(partial(_prepare, repo_id, private) if rank() == 0 else None)
    urls: list[str] = []

    def push() -> None:
        urls.append(_push(Push(files, message, MARKS), repo_id, private, time_limit))
        if isinstance(source, AnyTrainer):
            shutil.rmtree(files, ignore_errors=True)

    run_while_others_wait(push if rank() == 0 else None)
    return "".join(urls)


def _push(push: Push, repo_id: str, private: bool, seconds: float) -> str:
    request = HubProcess(repo_id=repo_id, folder=str(push.folder), message=push.message, marks=push.marks)
    try:
        return request.answer(seconds)
    except HubError as error:
        kind = ConfigurationError if error.is_final else UnsupportedConfigurationError
        raise kind(_not_pushed(Failure(push, str(error)), repo_id, private)) from None


def _check(repo_id: object, folder: str | Path, private: object, time_limit: object) -> None:
    if not (isinstance(repo_id, str) and _NAME.fullmatch(repo_id)):
        raise ConfigurationError(f'repo_id must be "OWNER/NAME", got {repo_id!r}.')
    if not isinstance(private, bool):
        raise ConfigurationError(f"private must be True or False, got {private!r}.")
    if "://" in str(folder):
        raise ConfigurationError(f"folder must be a folder on this machine, got {str(folder)!r}.")
    if not (isinstance(time_limit, int | float) and 0 < time_limit < math.inf):
        raise ConfigurationError(f"time_limit must be a number of seconds > 0, got {time_limit!r}.")
    try:
        version = importlib.metadata.version("huggingface_hub")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    if int(version.partition(".")[0]) < _MAJOR_VERSION:
        raise UnsupportedConfigurationError(
            f"huggingface_hub {_MAJOR_VERSION} or newer is not installed. Install it with: "
            'pip install "pa-callbacks-extra[hub]"'
        )


def _prepare(repo_id: str, private: bool) -> None:
    try:
        HubProcess(repo_id=repo_id, private=private).answer(_SECONDS_TO_PREPARE)
    except HubError as error:
        if error.is_final:
            raise ConfigurationError(
                f"The Hub does not accept pushes to {repo_id}.",
                given=str(error),
                do="Check repo_id, and the token: `hf auth login` stores one that may write, or set HF_TOKEN.",
            ) from None
        raise UnsupportedConfigurationError(
            "The Hub does not answer.",
            given=str(error),
            do="Check the network and HF_ENDPOINT, or leave PushToHubCallback out, and call push_to_hub after the run.",
        ) from None


def _not_pushed(failure: Failure, repo_id: str, private: bool) -> str:
    visibility = "" if private else ", private=False"
    folder = str(failure.push.folder)
    command = f"from pa_callbacks_extra import push_to_hub; push_to_hub({folder!r}, {repo_id!r}{visibility})"
    return (
        f"The model was not pushed to {repo_id}: {failure.problem} Its files are in {folder}. To push them, run "
        f'python -c "{command}"'
    )


def _folder_of(folder: str | Path, repo_id: str, name: str) -> Path:
    return Path(folder, repo_id.replace("/", "--"), name)


def _best_loaded(trainer: AnyTrainer) -> SaveBestModelCallback | None:
    """Return the callback that has loaded the best model at the end of the run."""
    callbacks: list[object] = list(trainer.callback_handler.callbacks)
    for callback in reversed(callbacks):
        if isinstance(callback, SaveBestModelCallback) and callback.load_saved_checkpoint:
            return callback if callback.best.epoch is not None else None
    return None


def _has_loaded_best(trainer: AnyTrainer) -> bool:
    return _best_loaded(trainer) is not None


def _moment_of_end(trainer: AnyTrainer) -> Moment:
    saves_best = _best_loaded(trainer)
    if saves_best is None or saves_best.best.epoch is None:
        updates = trainer.num_updates_completed
        description = "the end of the run" if updates else "loaded, and not trained by this trainer"
        return Moment(trainer.run_history.current_epoch, f"after update {updates}", description)
    best, epoch = saves_best.best, saves_best.best.epoch
    return Moment(epoch, f"from epoch {epoch}", f"the best {saves_best.watch_metric}, {best.value:.6g}")
