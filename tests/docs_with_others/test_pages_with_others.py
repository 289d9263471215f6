"""Code blocks of pages that need packages of others, where these are installed, do what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.running import TIME_LIMIT, run_page

PAGE = """<!-- file: names.py -->
```python
MODEL = "resnet18"
```

<!-- new script -->
<!-- needs: timm -->
```python
import timm
from names import MODEL

print(timm.create_model(MODEL, num_classes=2).fc.out_features)
```

```text
2
```
"""


@pytest.mark.whole_proof
@pytest.mark.timeout(2 * TIME_LIMIT)
def test_scripts_that_need_packages_of_others_do_what_their_pages_show(tmp_path: Path) -> None:
    """They are run here and nowhere else; a page of ours shows that they are."""
    pages = [page for page in all_pages() if any(script.needs for script in page.scripts())]
    problems: list[str] = []
    for number, page in enumerate([Page(ROOT / "timm.md", PAGE), *pages]):
        (tmp_path / str(number)).mkdir()
        problems += run_page(page, tmp_path / str(number), needs=True)
    assert not problems, "\n".join(problems)
