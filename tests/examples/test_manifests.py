"""The manifests of examples/kubernetes, skypilot and dstack have only fields that exist, and fit each other.

The page is docs/kubernetes.md. The schemas are in `manifest_schemas`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tests.docs.pages import ROOT, all_pages

EXAMPLES, SCHEMAS = ROOT / "examples", Path(__file__).parent / "manifest_schemas"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
MANIFESTS = {path.relative_to(EXAMPLES).as_posix(): path.read_text() for path in sorted(EXAMPLES.glob("*/*.y*ml"))}
QUEUED = "  # labels: {kueue.x-k8s.io/queue-name: my-queue}\n"
"""The line of a manifest for Kueue."""
OF_USERS = {"envs", "labels", "limits", "requests", "selector"}
"""Fields whose fields have names that users choose."""

Document: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str | int, ...]


class Field(NamedTuple):
    """A field of a document of a manifest."""

    manifest: str
    number: int
    place: Place


def documents(manifest: str) -> list[Document]:
    """Return the documents of a manifest."""
    return list(yaml.safe_load_all(MANIFESTS[manifest]))


@cache
def schema_of(manifest: str, kind: str | None) -> Any:
    """Return what checks a document."""
    name = kind or manifest.partition("/")[0]
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def problem_of(manifest: str, document: Document) -> str:
    """Return what is wrong with a document, or nothing."""
    error = best_match(schema_of(manifest, document.get("kind")).iter_errors(document))
    return f"{manifest}: {error.json_path}: {error.message}" if error else ""


def places_in(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all fields whose names the format gives."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not (place and place[-1] in OF_USERS):
                yield (*place, name)
            yield from places_in(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places_in(inner, (*place, index))


FIELDS = [
    Field(manifest, number, place)
    for manifest in MANIFESTS
    for number, document in enumerate(documents(manifest))
    for place in places_in(document)
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_has_only_fields_that_exist(manifest: str) -> None:
    """With values of the right types, and the fields that are required."""
    assert [problem_of(manifest, document) for document in documents(manifest)] == [""] * len(documents(manifest))


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.manifest}:{field.number}:{field.place}")
def test_a_misspelt_field_is_found(field: Field) -> None:
    """In each place of each manifest, which therefore has no part that the schemas do not know."""
    document = copy.deepcopy(documents(field.manifest)[field.number])
    *path, name = field.place
    holder: Any = document
    for key in path:
        holder = holder[key]
    holder[f"{name}z"] = holder.pop(name)
    kind = documents(field.manifest)[field.number].get("kind")
    assert best_match(schema_of(field.manifest, kind).iter_errors(document)) is not None


def test_fields_of_all_manifests_are_misspelt() -> None:
    """The test above has cases for each manifest, and for fields at the deepest place."""
    assert {field.manifest for field in FIELDS} == set(MANIFESTS)
    assert len(FIELDS) > 150
    assert max(len(field.place) for field in FIELDS) > 12


@pytest.mark.parametrize("name", ["job", "jobset", "trainjob"])
def test_a_manifest_is_valid_in_a_queue_of_kueue(name: str) -> None:
    """Without the mark of the comment, the label is among those of the job itself."""
    manifest = f"kubernetes/{name}.yaml"
    text = MANIFESTS[manifest]
    assert text.count(QUEUED) == 1
    *_, job = yaml.safe_load_all(text.replace("# labels:", "labels:"))
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "my-queue"}
    assert problem_of(manifest, job) == ""


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("kubernetes/train.py", "python"),
        ("kubernetes/launch.py", "python"),
        ("kubernetes/job.yaml", "yaml"),
        ("skypilot/task.yaml", "yaml"),
        ("dstack/task.dstack.yml", "yaml"),
    ],
)
def test_page_and_folders_have_the_same_files(file: str, language: str) -> None:
    """Copy the block of the page into the file after a change."""
    assert f"<!-- file: {Path(file).name} -->\n```{language}\n{(EXAMPLES / file).read_text()}```\n" in PAGE


def test_the_page_leads_to_each_manifest() -> None:
    """Each has a link, and what is validated is all there is."""
    assert len(MANIFESTS) == 6
    assert [manifest for manifest in MANIFESTS if f"](../examples/{manifest})" not in PAGE] == []


def pod_of(manifest: str) -> Document:
    """Return the part of a manifest for Kubernetes that describes its pods."""
    *_, job = documents(manifest)
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        spec = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod: Document = spec["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", ["job", "jobset", "trainjob"])
def test_pods_have_time_to_save_and_mount_the_claimed_volume(name: str) -> None:
    """SIGKILL comes after torchrun has waited, states go where the script saves them, and the claim exists."""
    text, pod = MANIFESTS[f"kubernetes/{name}.yaml"], pod_of(f"kubernetes/{name}.yaml")
    (timeout,) = re.findall(r'TORCH_ELASTIC_SHUTDOWN_TIMEOUT, value: "(\d+)"', text)
    assert 30 < int(timeout) < pod["terminationGracePeriodSeconds"]
    (claim,) = documents("kubernetes/states.yaml")
    volumes = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert volumes == {"states": claim["metadata"]["name"], "shm": None}
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"states": "/work/states", "shm": "/dev/shm"}


def test_the_first_pod_of_the_job_has_the_name_that_torchrun_is_given() -> None:
    """The Service selects the pods of the Job, and names them."""
    service, job = documents("kubernetes/job.yaml")
    pod, name = pod_of("kubernetes/job.yaml"), job["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f" {name}-0.{pod['subdomain']}:29400 " in pod["containers"][0]["command"][-1]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2


def test_the_first_pod_of_the_jobset_has_the_name_that_torchrun_is_given() -> None:
    """JobSet names it after itself, the replicated job, and the numbers of job and pod, in its Service."""
    (jobset,) = documents("kubernetes/jobset.yaml")
    name, (jobs,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    command = pod_of("kubernetes/jobset.yaml")["containers"][0]["command"][-1]
    assert f"--master-addr {name}-{jobs['name']}-0-0.{name} " in command


def test_exit_status_75_is_no_failure() -> None:
    """Platforms that look at the status are told of it, and start the launcher that keeps it."""
    for manifest, told in {
        "kubernetes/job.yaml": "{action: Ignore, onExitCodes: {operator: In, values: [75]}}",
        "kubernetes/jobset.yaml": "{action: FailJob, onExitCodes: {operator: In, values: [75]}}",
        "skypilot/task.yaml": "recover_on_exit_codes: [75]",
    }.items():
        assert told in MANIFESTS[manifest]
        assert "python launch.py --nnodes" in MANIFESTS[manifest]


def commands_that_restart() -> Iterator[tuple[str, str]]:
    """Yield the blocks and manifests in which torchrun may restart processes."""
    for page in all_pages():
        for block in page.blocks():
            yield f"{page}:{block.line}", block.code
    yield from MANIFESTS.items()


def test_nodes_may_return_to_each_command_that_restarts_processes() -> None:
    """Without the variable, torch 2.13 waits for addresses of processes that no longer exist."""
    blocks = {name: text for name, text in commands_that_restart() if re.search(r"--max-restarts \d", text)}
    assert len(blocks) == 4
    assert [name for name, text in blocks.items() if "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in text] == []
