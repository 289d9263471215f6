"""Links code on a page that names a public object, such as `Trainer` or `pa_core.Run`, to the reference of that object.

Pages write plain Markdown, which is read on a forge, too, where the reference does not exist.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode
from typing_extensions import override

__all__ = ["ReferenceLinks", "setup"]

_LINKED_BY_LAST_NAME = {"class", "exception", "function"}

_MEANT_OTHERWISE = {"DataLoader", "DistributedSampler", "num_processes", "rank"}
"""Names that torch or an argument has, too: on a page, only their full names are links."""


class ReferenceLinks(SphinxPostTransform):
    """Links a code span that is the full name of an object, or the last part of that of a class or function."""

    default_priority = 20

    @override
    def run(self, **kwargs: object) -> None:
        domain = self.env.get_domain("py")
        assert isinstance(domain, PythonDomain)
        named = {name: name for name in domain.objects}
        for name, entry in domain.objects.items():
            last_name = name.rpartition(".")[2]
            if entry.objtype in _LINKED_BY_LAST_NAME and last_name not in _MEANT_OTHERWISE:
                named.setdefault(last_name, name)
        for code in list(self.document.findall(nodes.literal)):
            name = named.get(code.astext().removesuffix("()"), "")
            if name and not isinstance(code.parent, (nodes.reference, pending_xref, nodes.title)):
                entry = domain.objects[name]
                assert self.app.builder is not None
                link = make_refnode(
                    self.app.builder, self.env.docname, entry.docname, entry.node_id, code.deepcopy(), name
                )
                code.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the transform known to Sphinx."""
    app.add_post_transform(ReferenceLinks)
    return {"parallel_read_safe": True}
