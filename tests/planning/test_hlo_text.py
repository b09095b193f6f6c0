"""The text of a program, as XLA prints it."""

from gmlp_flax.planning.hlo_text import array_bytes, arrays, constant, parse, root_of

TEXT = """
HloModule small

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="jit(f)/add"}
}

ENTRY %main (x: f32[4]) -> f32[] {
  %x = f32[4]{0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %total = f32[] reduce(%x, %zero), dimensions={0}, to_apply=%add /* of all */
}
"""


def test_modules_are_parsed():
    module = parse(TEXT)
    assert list(module.computations) == ["add", "main"]
    assert module.entry == "main"
    root = root_of(module.computations["main"])
    assert root.name == "total"
    assert root.opcode == "reduce"
    assert root.operands == ("x", "zero")
    assert root.called == ["add"]
    assert constant(module.computations["main"]["zero"]) == 0
    assert constant(root) is None


def test_arrays_of_a_type_are_parsed():
    in_memory, on_chip = arrays("(f32[2,3]{1,0}, bf16[8]{0:T(128)S(1)})")
    assert in_memory == ("f32[2,3]", 24, True)
    assert on_chip == ("bf16[8]", 16, False)


def test_bytes_of_a_type():
    assert (
        array_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, f32[], pred[5], /*index=3*/s4[3], token[])")
        == 12 + 4 + 5 + 2
    )
    assert array_bytes("(f32[4]{0:T(128)S(1)}, f32[8]{0})", on_chip=False) == 32
