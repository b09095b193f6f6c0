"""Collectives and traffic of programs in XLA's text."""

import re

import pytest

from gmlp_flax.planning.hlo import Collectives, Program

MOVED = "channel_id={}, replica_groups=[2,4]<=[8], use_global_device_ids=true"

LOOPS = """
HloModule jit_step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%inner_body (a: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %a = (s32[], f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %v = f32[8,16]{1,0:T(8,128)} get-tuple-element(%a), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %all-reduce.1 = f32[8,16]{1,0:T(8,128)S(1)} all-reduce(%v), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[8,16]{1,0}) tuple(%next, %all-reduce.1)
}

%inner_condition (a: (s32[], f32[8,16])) -> pred[] {
  %limit = s32[] constant(5)
  %a = (s32[], f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%outer_body (b: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %b = (s32[], f32[8,16]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %w = f32[8,16]{1,0} get-tuple-element(%b), index=1
  %two = s32[] constant(2)
  %begin = (s32[], f32[8,16]{1,0}) tuple(%two, /*index=1*/%w)
  %while.1 = (s32[], f32[8,16]{1,0}) while(%begin), condition=%inner_condition, body=%inner_body
  %r = f32[8,16]{1,0} get-tuple-element(%while.1), index=1
  %all-gather.1 = bf16[64,16]{1,0} all-gather(%r), channel_id=2, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  ROOT %t = (s32[], f32[8,16]{1,0}) tuple(%j, %r)
}

%outer_condition (b: (s32[], f32[8,16])) -> pred[] {
  %b = (s32[], f32[8,16]{1,0}) parameter(0)
  ROOT %maybe = pred[] constant(false)
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,16]{1,0}) tuple(%zero, %p)
  %while.2 = (s32[], f32[8,16]{1,0}) while(%start), condition=%outer_condition, body=%outer_body, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%while.2), index=1
}
"""

ASYNC = f"""
%all-reduce-scatter.1 (x: f32[64]) -> f32[16] {{
  %x = f32[64]{{0}} parameter(0)
  %all-reduce.9 = f32[64]{{0}} all-reduce(%x), {MOVED.format(9)}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %mine = f32[16]{{0}} dynamic-slice(%all-reduce.9, %zero), dynamic_slice_sizes={{16}}
}}

%begin (x: bf16[4,32]) -> (bf16[4,32], bf16[16,32]) {{
  %x = bf16[4,32]{{1,0}} parameter(0)
  %all-gather.1 = bf16[16,32]{{1,0}} all-gather(%x), {MOVED.format(8)}, frontend_attributes={{chain_id="0"}}, dimensions={{0}}
  ROOT %pair = (bf16[4,32]{{1,0}}, bf16[16,32]{{1,0}}) tuple(%x, %all-gather.1)
}}

%end (x: bf16[4,32]) -> bf16[16,32] {{
  %x = bf16[4,32]{{1,0}} parameter(0)
  ROOT %all-gather.2 = bf16[16,32]{{1,0}} all-gather(%x), {MOVED.format(8)}, frontend_attributes={{chain_id="0"}}, dimensions={{0}}
}}

%wrapped (x: f32[10]) -> f32[10] {{
  %x = f32[10]{{0}} parameter(0)
  ROOT %all-to-all.1 = f32[10]{{0}} all-to-all(%x), {MOVED.format(7)}, dimensions={{0}}
}}

ENTRY %main (p: f32[10], q: bf16[4,32], r: f32[64]) -> f32[10] {{
  %p = f32[10]{{0}} parameter(0)
  %q = bf16[4,32]{{1,0}} parameter(1)
  %r = f32[64]{{0}} parameter(2)
  %all-reduce-start.1 = f32[10]{{0}} all-reduce-start(%p), {MOVED.format(1)}, to_apply=%add
  %all-reduce-done.1 = f32[10]{{0}} all-reduce-done(%all-reduce-start.1)
  %all-gather-start.1 = (bf16[4,32]{{1,0}}, bf16[16,32]{{1,0}}) all-gather-start(%q), {MOVED.format(2)}, dimensions={{0}}
  %all-gather-done.1 = bf16[16,32]{{1,0}} all-gather-done(%all-gather-start.1)
  %collective-permute-start.1 = (f32[10]{{0}}, f32[10]{{0}}, u32[], u32[]) collective-permute-start(%p), channel_id=3, source_target_pairs={{{{0,1}},{{1,0}}}}
  %collective-permute-done.1 = f32[10]{{0}} collective-permute-done(%collective-permute-start.1)
  %async-start = ((f32[10]{{0}}), f32[10]{{0}}, s32[]) async-start(%p), calls=%wrapped
  %async-done = f32[10]{{0}} async-done(%async-start), calls=%wrapped
  %async-collective-start = (bf16[4,32]{{1,0}}, bf16[16,32]{{1,0}}) fusion(%q), kind=kCustom, calls=%begin
  %async-collective-done = bf16[16,32]{{1,0}} fusion(%q), kind=kCustom, calls=%end
  %scattered = f32[16]{{0}} fusion(%r), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %out = f32[10]{{0}} add(%all-reduce-done.1, %collective-permute-done.1)
}}
"""


def test_collectives_in_loops_are_multiplied():
    """Seven iterations, as stated, of a body whose own loop counts from 2 to 5; four of eight
    devices in each group."""
    costs = Program(LOOPS, devices=8).costs()
    reduced = 21 * 8 * 16 * 4
    gathered = 7 * 64 * 16 * 2
    expected = {
        "all-gather": Collectives(7, gathered, gathered * 0.75, gathered * 0.75),
        "all-reduce": Collectives(21, reduced, reduced * 1.5, reduced * 1.5),
    }
    assert costs.collectives == expected
    assert costs.unknown_loops == 0


def test_collectives_of_one_channel_are_counted_separately():
    """As `jax.shard_map` makes them, all with the same; only what libtpu splits into fusions is one
    by its channel."""
    of_one_channel = re.sub(r"channel_id=\d+", "channel_id=1", LOOPS)
    found = Program(of_one_channel, devices=8).costs()
    expected = Program(LOOPS, devices=8).costs()
    assert found == expected


def test_a_loop_of_unknown_length_counts_once():
    unknown = LOOPS.replace("known_trip_count", "something_else")
    costs = Program(unknown, devices=8).costs()
    assert costs.collectives["all-reduce"].count == 3
    assert costs.unknown_loops == 1


def test_a_start_and_its_done_are_one_collective():
    """In each of XLA's notations: -start and -done, wrapped, and split by libtpu; groups of 4."""
    found = Program(ASYNC, devices=8).costs().collectives
    count_and_bytes = {}
    wire_bytes = {}
    waiting_bytes = {}
    for kind, collectives in found.items():
        count_and_bytes[kind] = (collectives.count, collectives.bytes)
        wire_bytes[kind] = collectives.wire_bytes
        if collectives.waiting_bytes:
            waiting_bytes[kind] = collectives.waiting_bytes
    assert count_and_bytes == {
        "all-gather": (2, 2 * 1024),
        "all-reduce": (1, 40),
        "all-to-all": (1, 40),
        "collective-permute": (1, 40),
        "reduce-scatter": (1, 64),
    }
    assert wire_bytes == {
        "all-gather": 2 * 768,
        "all-reduce": 60,
        "all-to-all": 30,
        "collective-permute": 40,
        "reduce-scatter": 192,
    }
    assert waiting_bytes == {"all-to-all": 30, "reduce-scatter": 192}


def test_a_collective_that_spans_a_loop_counts_once():
    """Its steps are in fusions of the loop's body, its start and end outside the loop."""
    step = f"""
%step (x: f32[8,16]) -> f32[8,16] {{
  %x = f32[8,16]{{1,0}} parameter(0)
  %all-gather.5 = bf16[16,32]{{1,0}} all-gather(%x), {MOVED.format(8)}, frontend_attributes={{chain_id="0"}}, dimensions={{0}}
  ROOT %y = f32[8,16]{{1,0}} negate(%x)
}}
"""
    loop = LOOPS.replace("get-tuple-element(%b), index=1", "fusion(%b), kind=kOutput, calls=%step")
    begin = ASYNC[ASYNC.index("%begin") : ASYNC.index("%end")]
    zero = "%zero = s32[] constant(0)"
    start = f"%began = (bf16[4,32]{{1,0}}, bf16[16,32]{{1,0}}) fusion(%p), kind=kCustom, calls=%begin\n  {zero}"
    loop = loop.replace(zero, start)
    costs = Program(begin + step + loop, devices=8).costs()
    assert costs.collectives["all-gather"].count == 7 + 1


SLICED = """
%inner (s: f32[6,1024], i: s32[]) -> f32[1,1024] {
  %s = f32[6,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,1024]{1,0} dynamic-slice(%s, %i, %zero), dynamic_slice_sizes={1,1024}
}

%outer (s: f32[6,1024], i: s32[], x: f32[1,1024], d: f32[6,1024]) -> f32[6,1024] {
  %s = f32[6,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[1,1024]{1,0} parameter(2)
  %d = f32[6,1024]{1,0} parameter(3)
  %row = f32[1,1024]{1,0} fusion(%s, %i), kind=kLoop, calls=%inner
  %y = f32[1,1024]{1,0} multiply(%row, %x)
  %zero = s32[] constant(0)
  ROOT %new = f32[6,1024]{1,0} dynamic-update-slice(%d, %y, %i, %zero)
}

ENTRY %main (s: f32[6,1024], i: s32[], x: f32[1,1024], d: f32[6,1024]) -> f32[6,1024] {
  %s = f32[6,1024]{1,0} parameter(0)
  %i = s32[]{:T(128)S(6)} parameter(1)
  %x = f32[1,1024]{1,0:T(8,128)S(1)} parameter(2)
  %d = f32[6,1024]{1,0} parameter(3)
  ROOT %out = f32[6,1024]{1,0} fusion(%s, %i, %x, %d), kind=kLoop, calls=%outer
}
"""


def test_slices_of_stacked_layers_are_counted_instead_of_the_stack():
    """One row is read and one is written in place; x is on the chip already."""
    assert Program(SLICED, devices=1).costs().traffic == 2 * 4096


def test_operations_are_sorted_by_the_bytes_that_they_move():
    """By instruction, the largest first: in the loops 7 x 3 runs that read and write what is not on
    the chip."""
    metadata = 'metadata={op_name="jit(f)/transpose(jvp())/layer/psum"}'
    named = LOOPS.replace("to_apply=%add", f"to_apply=%add, {metadata}")
    costs = Program(named, devices=8).costs()
    gathered, reduced, *others = costs.moved
    operand_bytes = 8 * 16 * 4
    gathered_bytes = 64 * 16 * 2
    expected = (7 * (operand_bytes + gathered_bytes), 7, "all-gather.1", "bf16[64,16]")
    assert gathered[:4] == expected
    reduced_bytes = 21 * 8 * 16 * 4
    expected = (reduced_bytes, 21, "all-reduce.1", "f32[8,16]*", "backward layer/psum")
    assert reduced == expected
    other_bytes = sum(operation.bytes for operation in others)
    assert costs.traffic == gathered.bytes + reduced.bytes + other_bytes


def test_a_fusion_that_reads_the_stack_counts_all_of_it():
    whole = SLICED.replace("multiply(%row, %x)", "multiply(%row, %s)")
    assert Program(whole, devices=1).costs().traffic == pytest.approx(6 * 4096 + 4096)


def test_reserved_memory_is_not_counted():
    """libtpu's AllocateBuffer; a kernel's custom call reads its operands and writes its result."""
    kernel = """
ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  %room = f32[64,1024]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  ROOT %out = f32[1024]{0} custom-call(%x), custom_call_target="tpu_custom_call"
}
"""
    assert Program(kernel, devices=1).costs().traffic == 2 * 4096


def test_collectives_of_a_gpus_program():
    """Two of one channel in a computation are two; what a start gives has its operands' types
    first."""
    text = """
ENTRY %main (p: f32[1024], q: f32[30,256]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  %q = f32[30,256]{1,0} parameter(1)
  %all-reduce.3 = f32[1024]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %all-reduce-start = ((f32[30,256]{1,0}), f32[30,256]{1,0}) all-reduce-start(%q), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %all-reduce-done = f32[30,256]{1,0} all-reduce-done(%all-reduce-start)
  ROOT %copy = f32[1024]{0} copy(%all-reduce.3)
}
"""
    size = 4 * 1024 + 4 * 30 * 256
    expected = Collectives(2, size, 1.5 * size, 1.5 * 4 * 1024)
    assert Program(text, 4).costs().collectives == {"all-reduce": expected}
