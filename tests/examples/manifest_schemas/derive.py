"""Derives the schemas of this folder from published packages: ``python tests/examples/manifest_schemas/derive.py``.

It needs an environment with the packages that README.md names. A schema keeps all fields of each object that a manifest
contains, and nothing of the objects inside fields that no manifest uses, so that the files stay small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = Any
"""A JSON schema, or a part of one, or of a document that it describes."""

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[2] / "examples"
KUBERNETES = "v1.37.0-local-strict"
QUANTITY: Json = {"type": ["string", "integer", "number"]}
"""A Kubernetes quantity, such as 8 or 100Gi, which the models of Kubeflow describe as an object."""

KEPT = ("type", "enum", "const", "required", "pattern", "minimum", "maximum", "uniqueItems")


def cut(schema: Json, values: Sequence[Json], definitions: Mapping[str, Json]) -> Json:
    """Return what a schema says of some values, with all names of fields that it knows, and with no references.

    Args:
        schema: a schema, or a part of one.
        values: what the manifests have in its place; without any, the result is true, which allows everything.
        definitions: what references in the schema point to, by their names.
    """
    if not values or schema is True:
        return True
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return QUANTITY if name.endswith("Quantity") else cut(definitions[name], values, definitions)
    found = {key: schema[key] for key in KEPT if key in schema}
    for several in ("anyOf", "oneOf"):
        if several in schema:
            choices = [cut(one, values, definitions) for one in schema[several] if one.get("type") != "null"]
            found |= choices[0] if len(choices) == 1 else {several: choices}
    objects = [value for value in values if isinstance(value, dict)]
    if "properties" in schema:
        found["properties"] = {
            name: cut(field, [one[name] for one in objects if name in one], definitions)
            for name, field in sorted(schema["properties"].items())
        }
        found["additionalProperties"] = False  # SkyPilot itself accepts any field in some objects
    elif isinstance(schema.get("additionalProperties"), dict):
        named = [value for one in objects for value in one.values()]
        found["additionalProperties"] = cut(schema["additionalProperties"], named, definitions)
    if "items" in schema:
        items = [item for value in values if isinstance(value, list) for item in value]
        found["items"] = cut(schema["items"], items, definitions)
    return found


def documents(*names: str) -> Iterator[Json]:
    """Yield the documents of some manifests, with the label for Kueue."""
    for name in names:
        yield from yaml.safe_load_all((EXAMPLES / name).read_text().replace("# labels:", "labels:"))


def of_kubernetes(kind: str, group: str) -> Json:
    """Return the schema of a kind of Kubernetes itself."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / KUBERNETES
    schema = json.loads((folder / f"{kind.lower()}-{group}.json").read_text())
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    used = [one for one in documents("kubernetes/states.yaml", "kubernetes/job.yaml") if one["kind"] == kind]
    return cut(schema, used, definitions)


def of_kubeflow(model: str, manifest: str) -> Json:
    """Return the schema of a kind of JobSet or Kubeflow Trainer."""
    schema = getattr(import_module("kubeflow_trainer_api.models"), model).model_json_schema()
    return cut(schema, [*documents(manifest)], schema["$defs"])


def of_skypilot() -> Json:
    """Return the schema of a task of SkyPilot, with its resources in place."""
    schemas = import_module("sky.utils.schemas")
    task = schemas.get_task_schema()
    task["properties"]["resources"] = schemas.get_resources_schema()
    return cut(task, [*documents("skypilot/task.yaml")], {})


def of_dstack() -> Json:
    """Return the schema of a task of dstack."""
    schema = import_module("dstack._internal.core.models.configurations").TaskConfiguration.model_json_schema()
    return cut(schema, [*documents("dstack/task.dstack.yml")], schema["$defs"])


def main() -> None:
    """Write all of them."""
    derived = {
        "PersistentVolumeClaim": of_kubernetes("PersistentVolumeClaim", "v1"),
        "Service": of_kubernetes("Service", "v1"),
        "Job": of_kubernetes("Job", "batch-v1"),
        "JobSet": of_kubeflow("JobsetV1alpha2JobSet", "kubernetes/jobset.yaml"),
        "TrainJob": of_kubeflow("TrainerV1alpha1TrainJob", "kubernetes/trainjob.yaml"),
        "skypilot": of_skypilot(),
        "dstack": of_dstack(),
    }
    for name, schema in derived.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=1) + "\n")


if __name__ == "__main__":
    main()
