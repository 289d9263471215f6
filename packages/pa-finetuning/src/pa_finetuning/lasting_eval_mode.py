"""Eval mode that lasts: a module stays in it when ``train()`` is called on the model around it.

``nn.Module`` has no hook for a change of mode, and a training loop calls ``model.train()`` in each epoch, so a
held module carries its own ``train``, which ``nn.Module.train`` of the modules around it calls. It is a
partial of a function of this file, with the module as its argument: copied or pickled with the module, it
belongs to the copy (a closure would keep changing the original, a lambda could not be pickled).

A forward pre-hook would leave the module in training mode between ``train()`` and the next forward pass, for
all who look at it, and change its state in the middle of what ``torch.compile`` compiles. A subclass made at
run time would change the type of the module, which others look at too, and could not be pickled.
"""

from __future__ import annotations

from functools import partial

from torch import nn


def hold_in_eval_mode(module: nn.Module) -> None:
    """Put one module, not those within it, into eval mode until its mode is released."""
    module.training = False
    vars(module)["train"] = partial(_train_all_but_itself, module)


def release_mode(module: nn.Module) -> None:
    """Let the mode of a module follow ``train()`` and ``eval()`` again; it stays what it is until then."""
    held = vars(module).get("train")
    if isinstance(held, partial) and held.func is _train_all_but_itself:
        del vars(module)["train"]


def _train_all_but_itself(module: nn.Module, mode: bool = True) -> nn.Module:
    type(module).train(module, mode)
    module.training = False
    return module
