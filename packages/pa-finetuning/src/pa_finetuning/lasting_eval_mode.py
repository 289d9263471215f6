"""Eval mode that lasts: a module stays in it when ``train()`` is called on the model around it.

``nn.Module`` has no hook for mode changes, and a training loop calls ``model.train()`` in each epoch. Therefore, a held
module carries its own ``train``, which ``nn.Module.train`` of the modules around it calls. It is a partial of a
function of this file, with the module as its argument: copied or pickled with the module, it belongs to the copy (a
closure would keep changing the original, a lambda could not be pickled).

A forward pre-hook would leave the module in training mode between ``train()`` and the next forward pass, visible to
other code, and change its state in the middle of a graph of ``torch.compile``. A subclass made at
run time would change the type of the module, which other code checks, and could not be pickled.
"""

from __future__ import annotations

from functools import partial

from torch import nn


def hold_in_eval_mode(module: nn.Module) -> None:
    """Put a single module, not the modules within it, into eval mode until its mode is released."""
    module.training = False
    vars(module)["train"] = partial(_train_all_but_itself, module)


def release_mode(module: nn.Module) -> None:
    """Let the mode of a module follow ``train()`` and ``eval()`` again; until then its mode does not change."""
    held = vars(module).get("train")
    if isinstance(held, partial) and held.func is _train_all_but_itself:
        del vars(module)["train"]


def _train_all_but_itself(module: nn.Module, mode: bool = True) -> nn.Module:
    type(module).train(module, mode)
    module.training = False
    return module
