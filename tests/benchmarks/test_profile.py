import pytest

from benchmarks import profile
from benchmarks.peers.protocol import Shape, Work
from benchmarks.profile import Kind, Operation, Trace, find_kinds, measure_union

MODULE = """
ENTRY %main {
  %dot.7 = f32[8,64]{1,0} dot(%a, %b), metadata={op_type="MatMul" op_name="while/MatMul_2"}
  ROOT %add_fusion.1 = f32[]{:T(128)} fusion(%c), kind=kLoop, calls=%f, metadata={op_name="add"}
  %copy.3 = f32[4,2]{0,1} copy(%d)
  %while.8 = (s32[], f32[2]{0}) while(%tuple), condition=%c, body=%b, metadata={op_name="while"}
}
"""
PRODUCT = Kind("dot", "f32[8,64]", "MatMul")
SUM = Kind("fusion", "f32[]", "add")


def test_the_kinds_of_instructions_are_read_from_a_compiled_module():
    assert find_kinds(MODULE) == {
        "dot.7": PRODUCT,
        "add_fusion.1": SUM,
        "copy.3": Kind("copy", "f32[4,2]", ""),
    }
    assert PRODUCT.is_product
    assert not SUM.is_product


def test_time_in_which_several_operations_run_counts_once():
    assert measure_union([Operation(SUM, *span) for span in ((5, 6), (0, 2), (1, 3))]) == 4


def test_the_parts_of_a_call_add_up_to_it(monkeypatch, capsys):
    operations = [Operation(PRODUCT, 0, 6), Operation(SUM, 5, 7), Operation(SUM, 8, 9)]
    monkeypatch.setattr(profile, "measure_apart", lambda *_: Trace(10.0, operations, 123.0))
    assert profile.main(["profile", "--works=eval-bytes", "--operations=1"]) == 0
    printed = capsys.readouterr().out
    assert "| 123 | 60% | 20% | 20% |" in printed
    assert "| dot | `f32[8,64]` | MatMul | 1 | 6,000,000 | 67% |" in printed
    assert "fusion" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "eval", "generate"])
def test_products_of_a_traced_call_are_found(kind):
    found = profile.measure_apart(profile.trace, Work(kind, Shape(1, 8, 2, 8, 8, 8, 1, 23)))
    kinds = {each.kind for each in found.operations}
    assert {each.is_product for each in kinds} == {True, False}
    assert all(each.start <= each.end for each in found.operations)
    assert 0 < measure_union(found.operations) < found.seconds
