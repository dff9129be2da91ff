"""The clients of Google Cloud and Kubernetes, with recorded answers; their resolvers take them."""

import json

import pytest
from places import ROOT

from txl_tf.training.cluster_resolvers import make_gce_lister, make_kubernetes_lister

MANIFEST = ROOT / "examples" / "clusters" / "kubernetes.yaml"


def answer(content):
    return {"status": "200"}, json.dumps(content)


def answer_instance(address):
    return answer({"networkInterfaces": [{"networkIP": address}]})


def list_instances(*names, **more):
    items = [{"instance": f"https://host/zones/z/instances/{name}"} for name in names]
    return answer({**({"items": items} if items else {}), **more})


def test_compute_engine_is_asked_as_its_api_wants_it():
    """TensorFlow's resolver alone names a parameter that the API does not have."""
    discovery = pytest.importorskip("googleapiclient.discovery", reason="pip install -e '.[gce]'")
    from googleapiclient.http import HttpMockSequence

    answers = HttpMockSequence(
        [
            list_instances(),
            list_instances("b", "a", nextPageToken="more"),
            *map(answer_instance, ("10.0.0.7", "10.0.0.3")),
            list_instances("c"),
            answer_instance("10.0.0.5"),
        ]
    )
    service = discovery.build("compute", "v1", http=answers, static_discovery=True)
    lister = make_gce_lister("p", "z", "g", 7411, service)
    assert lister() == []
    assert lister() == [f"10.0.0.{number}:7411" for number in (3, 5, 7)]


@pytest.fixture
def kubernetes():
    return pytest.importorskip("kubernetes", reason="pip install -e '.[kubernetes]'")


def test_pods_are_listed_by_the_client_of_kubernetes(kubernetes, monkeypatch):
    status = {"phase": "Running"}
    items = [
        {
            "metadata": {"name": f"txl-{index}"},
            "status": {**status, "hostIP": f"10.0.0.{7 - index}"},
        }
        for index in range(2)
    ]
    api = kubernetes.client.ApiClient()
    pods = api.deserialize(json.dumps({"items": items}), "V1PodList", "application/json")
    client = kubernetes.client.CoreV1Api(api)
    monkeypatch.setattr(client, "list_pod_for_all_namespaces", lambda label_selector: pods)
    assert make_kubernetes_lister("job-name=txl", 7411, client)() == [
        "10.0.0.7:7411",
        "10.0.0.6:7411",
    ]


def test_the_manifest_has_the_fields_that_the_api_knows(kubernetes):
    import yaml

    api = kubernetes.client.ApiClient()
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    for document in documents:
        kind = f"V1{document['kind']}"
        parsed = api.deserialize(json.dumps(document), kind, "application/json")
        assert api.sanitize_for_serialization(parsed) == document
    assert [document["kind"] for document in documents][-1] == "Job"


def test_the_manifest_starts_the_program_with_flags_that_it_has(kubernetes):
    import yaml

    from txl_tf.cli.flags import parse_flags
    from txl_tf.train_gpu import define_gpu_flags

    job = list(yaml.safe_load_all(MANIFEST.read_text()))[-1]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    options = define_gpu_flags()
    parse_flags(options, [*container["command"][1:], *container["args"]])
    assert options.cluster_size == job["completions"] == job["parallelism"]
