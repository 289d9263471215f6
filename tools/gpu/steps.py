"""What an update costs in each loop: time, memory, and how often it waits for the device."""

from __future__ import annotations

import statistics
from collections import Counter

from tools.gpu.figures import NEEDS_CUDA, attempt, failed, not_measured, publish
from tools.gpu.loops import LOOPS
from tools.gpu.setting import Setting
from tools.gpu.tasks import TASKS, Task
from tools.gpu.window import CountsCalls, CountsWarnings, Window, run_turn

__all__ = ["measure"]

REFERENCE = "by hand"
FEW_AND_MANY = {"mlp": (10, 60), "resnet": (2, 6), "gpt2": (2, 6)}
CHECKED = "set_sync_debug_mode"
WAITS = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaStreamSynchronize")


def measure(setting: Setting, name: str) -> None:
    """Let all loops train one task in turn."""
    task = TASKS[name](setting)
    loops = [loop for loop in LOOPS if name == "mlp" or loop != "by hand, tuned"]
    updates = updates_of_turn(task, setting)
    loops = [loop for loop in loops if works(loop, task, updates, setting)]
    times: dict[str, list[float]] = {loop: [] for loop in loops}
    bytes_taken: dict[str, int] = {}
    for number in range(setting.rounds):
        for loop in loops[number % len(loops) :] + loops[: number % len(loops)]:
            window = Window(updates)
            run_turn(task, LOOPS[loop], window, setting)
            times[loop].append(seconds_of_update(window))
            bytes_taken[loop] = window.peak_bytes
    publish_times(task, updates, times)
    if setting.on_cuda:
        publish_memory(task, bytes_taken)
        for loop in loops:
            with attempt(f"waits for the device in an update, {task.name}: {loop}"):
                publish_waits(task, loop, FEW_AND_MANY[name], setting)
    else:
        not_measured(f"memory of the device, {task.name}", NEEDS_CUDA)
        not_measured(f"waits for the device in an update, {task.name}", NEEDS_CUDA)


def updates_of_turn(task: Task, setting: Setting) -> int:
    """As many updates as fit into the time of a turn, by the loop by hand."""
    window = Window(3)
    run_turn(task, LOOPS[REFERENCE], window, setting)
    return max(3, min(500, round(setting.seconds_of_turn / seconds_of_update(window))))


def works(loop: str, task: Task, updates: int, setting: Setting) -> bool:
    """Whether a loop trains at all, in a turn that does not count; if not, the report says why."""
    try:
        run_turn(task, LOOPS[loop], Window(min(updates, 5)), setting)
    except Exception as error:
        failed(f"an update of {task.name}, bf16: {loop}", error)
        return False
    return True


def seconds_of_update(window: Window) -> float:
    """The mean over the window."""
    assert window.seconds is not None
    return window.seconds / window.updates


def publish_times(task: Task, updates: int, times: dict[str, list[float]]) -> None:
    """The medians, and the medians of the ratios of each round."""
    for loop, of_loop in times.items():
        ratio = statistics.median(seconds / by_hand for seconds, by_hand in zip(of_loop, times[REFERENCE], strict=True))
        low, high = min(of_loop) * 1e3, max(of_loop) * 1e3
        publish(
            f"an update of {task.name}, bf16: {loop}",
            statistics.median(of_loop) * 1e3,
            "ms",
            to_by_hand=ratio,
            note=f"{low:.3f} to {high:.3f} in {len(of_loop)} rounds of {updates} updates; {task.batch_size} samples",
        )


def publish_memory(task: Task, bytes_taken: dict[str, int]) -> None:
    """Peaks of the last round."""
    for loop, peak in bytes_taken.items():
        what = f"peak memory of the device, {task.name}, bf16: {loop}"
        publish(what, peak / 2**20, "MiB", to_by_hand=peak / bytes_taken[REFERENCE])


def publish_waits(task: Task, loop: str, few_and_many: tuple[int, int], setting: Setting) -> None:
    """How often an update waits: the difference of two windows, so that what begins and ends them does not count."""
    counts: list[Counter[str]] = []
    for updates in few_and_many:
        calls_seen, checked = CountsCalls(), CountsWarnings()
        run_turn(task, LOOPS[loop], Window(updates, (calls_seen, checked)), setting)
        counts.append(calls_seen.counts + Counter({CHECKED: checked.count}))
    few, many = few_and_many
    calls = {name: (counts[1][name] - counts[0][name]) / (many - few) for name in counts[1]}
    launches = sum(count for name, count in calls.items() if "LaunchKernel" in name)
    waits = {name: calls[name] for name in WAITS if calls.get(name)}
    what = f"waits for the device in an update, {task.name}: {loop}"
    by_check = f"{calls.get(CHECKED, 0.0):g} by set_sync_debug_mode"
    if launches == 0:
        publish(what, calls.get(CHECKED, 0.0), note=f"{by_check}; the profiler saw no call of CUDA", is_wrong=True)
        return
    copies = calls.get("cudaMemcpyAsync", 0.0)
    named = ", ".join(f"{name} {count:g}" for name, count in waits.items()) or "none"
    publish(
        what,
        sum(waits.values()),
        note=f"by the profiler: {named}; {by_check}; {copies:g} copies and {launches:g} kernels an update",
    )
