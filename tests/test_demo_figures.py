"""The documentation cites the metrics of the demo that `benchmarks.demo` measured."""

import json

import pytest
from places import ROOT

FOUND = json.loads((ROOT / "docs" / "lab" / "demo.json").read_text())
BITS, DISTANCES = FOUND["test_bits"], FOUND["mean_distance"]
FURTHEST = sorted(DISTANCES, key=DISTANCES.get, reverse=True)[:3]
FILE_PAGE = "lab/measurements.md"
FILES = {(file["method"], file["precision"]): file for file in FOUND["step_files"]}


def join(values):
    *first, last = values
    return f"{', '.join(first)} and {last}"


def format_row(precision):
    files = [FILES[method, precision] for method in ("litert", "onnx")]
    cells = [f"{f['bytes'] / 1e6:.2f} | {f['bits_per_token']:.4f}" for f in files]
    return f"| {precision} | {' | '.join(cells)} |"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("generating.md", f"{BITS['float32']:.5f} bpc"),
        *(
            ("generating.md", f"| +{BITS[name] - BITS['float32']:.5f} bpc |")
            for name in ("bfloat16", "int8")
        ),
        ("lab/numbers.md", f"| **{BITS['float32']:.3f}** |"),
        (
            "dynamic-evaluation.md",
            f"{BITS['float32']:.3f} bits per byte static, **{FOUND['dynamic_test_bits']:.3f}** dyn",
        ),
        ("effective-context-length.md", f"an ECL of {FOUND['ecl']} and RECLs of"),
        (
            "effective-context-length.md",
            f"{join(map(str, FOUND['recl'].values()))} bytes for r = 0.1, 0.5 and 1",
        ),
        ("lab/paper.md", f"demo: {' / '.join(map(str, FOUND['recl'].values()))} bytes"),
        ("attention-visualization.md", f"Heads {join(FURTHEST)} look furthest back"),
        (
            "attention-visualization.md",
            f"{join(f'{DISTANCES[head]:.1f}' for head in FURTHEST)} bytes",
        ),
        (FILE_PAGE, f"has {FILES['live', 'float32']['bits_per_token']:.4f} bits per byte"),
        (FILE_PAGE, f"own int8 {FILES['live', 'int8']['bits_per_token']:.4f}"),
        *((FILE_PAGE, format_row(name)) for name in ("float32", "float16", "int8")),
    ],
)
def test_a_page_cites_the_measured_metric(page, text):
    assert text in (ROOT / "docs" / page).read_text()
