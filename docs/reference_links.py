"""Links code on a page that names a public object, such as `Trainer` or `pa_core.Run`, to the reference of that object.

Pages write plain Markdown, which is read on a forge, too, where the reference does not exist. Names of torch are linked
to its documentation.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode
from typing_extensions import override

__all__ = ["OF_TORCH", "ReferenceLinks", "is_about_trials", "setup"]

OF_TORCH = (
    "torch.nn.CrossEntropyLoss",
    "torch.nn.SyncBatchNorm",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.optim.AdamW",
    "torch.optim.LBFGS",
    "torch.optim.lr_scheduler.CosineAnnealingLR",
    "torch.optim.lr_scheduler.LambdaLR",
    "torch.optim.lr_scheduler.LRScheduler",
    "torch.optim.lr_scheduler.OneCycleLR",
    "torch.optim.lr_scheduler.ReduceLROnPlateau",
    "torch.utils.data.ConcatDataset",
    "torch.utils.data.DataLoader",
    "torch.utils.data.Dataset",
    "torch.utils.data.IterableDataset",
    "torch.utils.data.RandomSampler",
    "torch.utils.data.Subset",
    "torch.utils.data.TensorDataset",
    "torch.utils.data.WeightedRandomSampler",
    "torch.utils.data.distributed.DistributedSampler",
)
"""Names that pages use often: the build has no network, so it cannot read the list of all names."""

_TORCH_SITE = "https://docs.pytorch.org/docs/stable/"
_TRIALS = "pa_trial."
_LINKED_BY_LAST_NAME = {"class", "exception", "function"}

_MEANT_OTHERWISE = {"gather", "load", "num_processes", "rank", "save"}
"""Names that a method or an argument has, too: on a page, only their full names are links."""

_OF_OTHERS = {"coming-from/transformers": {"EarlyStoppingCallback", "Trainer", "TrainerCallback"}}
"""Names that another library has, too, by the page about it."""


class ReferenceLinks(SphinxPostTransform):
    """Links a code span that is the full name of an object, or the last part of that of a class or function."""

    default_priority = 20

    @override
    def run(self, **kwargs: object) -> None:
        domain = self.env.get_domain("py")
        assert isinstance(domain, PythonDomain)
        named = names_on_page(self.env.docname, domain)
        of_torch = {name: full_name for full_name in OF_TORCH for name in (full_name, _last_part(full_name))}
        for code in list(self.document.findall(nodes.literal)):
            text = code.astext().removesuffix("()")
            if isinstance(code.parent, (nodes.reference, pending_xref, nodes.title)):
                continue
            if name := named.get(text):
                entry = domain.objects[name]
                assert self.app.builder is not None
                link = make_refnode(
                    self.app.builder, self.env.docname, entry.docname, entry.node_id, code.deepcopy(), name
                )
                code.replace_self(link)
            elif name := of_torch.get(text):
                address = address_in_torch(name)
                code.replace_self(nodes.reference("", "", code.deepcopy(), refuri=address, reftitle=name))


def names_on_page(page: str, domain: PythonDomain) -> dict[str, str]:
    """The full name of each object of ours, by the texts that mean it on a page."""
    others = _MEANT_OTHERWISE | _OF_OTHERS.get(page, set())
    if is_about_trials(page):
        candidates = sorted(domain.objects, key=lambda name: not name.startswith(_TRIALS))
    else:
        candidates = [name for name in domain.objects if not name.startswith(_TRIALS)]
        others |= {_last_part(name) for name in OF_TORCH}
    named = {name: name for name in domain.objects}
    for name in candidates:
        if domain.objects[name].objtype in _LINKED_BY_LAST_NAME and _last_part(name) not in others:
            named.setdefault(_last_part(name), name)
    return named


def is_about_trials(page: str) -> bool:
    """Whether names of pa_trial, which torch or pa_core may have as well, are meant on a page."""
    return "trial" in page or "determined" in page


def address_in_torch(name: str) -> str:
    """The place of a name in the documentation of torch."""
    page = "data" if name.startswith("torch.utils.data.") else f"generated/{name}"
    return f"{_TORCH_SITE}{page}.html#{name}"


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the transform known to Sphinx."""
    app.add_post_transform(ReferenceLinks)
    return {"parallel_read_safe": True}
