"""Texts of compiled programs, cut down to what the account reads. The lines are XLA's own, of LlamaGen-XL."""

_SCORE = "jit(advance)/while/body/score/LlamaGen.extend/transformer/layer_0"

# A parameter is read by slices into the small memory and copied into another layout; one is moved there unchanged;
# a cache goes in and comes out by copies; a small array is copied for a result.
TPU = """\
HloModule jit_advance, is_scheduled=true, entry_computation_layout={(bf16[8,128]{1,0:T(8,128)(2,1)})->(s32[])}

%fused_computation.1 (param_0.1: bf16[8,128]) -> bf16[8,128] {
  %param_0.1 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %negate.1 = bf16[8,128]{1,0:T(8,128)(2,1)} negate(%param_0.1), metadata={op_name="SCORE/qkv/dot_general"}
}

%fused_computation.2 (param_0.2: bf16[2,64]) -> bf16[2,64] {
  %param_0.2 = bf16[2,64]{1,0:T(2,128)(2,1)} parameter(0)
  ROOT %copy.9 = bf16[2,64]{0,1:T(2,128)(2,1)} copy(%param_0.2)
}

%inner_body (arg.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg.1 = (s32[]{:T(128)}, f32[4]{0:T(128)}) parameter(0)
  %get-tuple-element.20 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %get-tuple-element.21 = f32[4]{0:T(128)} get-tuple-element(%arg.1), index=1
  %multiply.1 = f32[4]{0:T(128)} multiply(%get-tuple-element.21, %get-tuple-element.21), \
metadata={op_name="jit(advance)/while/body/draft/while/body/mul"}, backend_config={"window_config":\
{"estimated_cycles":"30"}}
  ROOT %tuple.5 = (s32[]{:T(128)}, f32[4]{0:T(128)}) tuple(%get-tuple-element.20, %multiply.1)
}

%inner_condition (arg.2: (s32[], f32[4])) -> pred[] {
  %arg.2 = (s32[]{:T(128)}, f32[4]{0:T(128)}) parameter(0)
  ROOT %constant.3 = pred[]{:T(512)} constant(false)
}

%body (arg: (s32[], bf16[8,128], bf16[2,64], f32[4])) -> (s32[], bf16[8,128], bf16[2,64], f32[4]) {
  %arg = (s32[]{:T(128)}, bf16[8,128]{0,1:T(8,128)(2,1)}, bf16[2,64]{0,1:T(2,128)(2,1)}, \
/*index=3*/f32[4]{0:T(128)}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %get-tuple-element.2 = bf16[8,128]{0,1:T(8,128)(2,1)} get-tuple-element(%arg), index=1
  %get-tuple-element.3 = bf16[2,64]{0,1:T(2,128)(2,1)} get-tuple-element(%arg), index=2
  %get-tuple-element.4 = f32[4]{0:T(128)} get-tuple-element(%arg), index=3
  %fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(%get-tuple-element.2), kind=kLoop, calls=%fused_computation.1, \
backend_config={"flag_configs":[],"window_config":{"kernel_window_bounds":[],"estimated_cycles":"500"}}
  %all-reduce.1 = bf16[8,128]{1,0:T(8,128)(2,1)} all-reduce(%fusion.1), channel_id=1, to_apply=%inner_condition, \
metadata={op_name="SCORE/out/dot_general"}, backend_config={"window_config":{"estimated_cycles":"70"}}
  %custom-call.30 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} custom-call(%fusion.1), custom_call_target="ConcatBitcast"
  %tuple.4 = (s32[]{:T(128)}, f32[4]{0:T(128)}) tuple(%get-tuple-element.1, %get-tuple-element.4)
  %while.2 = (s32[]{:T(128)}, f32[4]{0:T(128)}) while(%tuple.4), condition=%inner_condition, body=%inner_body
  %add.1 = s32[]{:T(128)} add(%get-tuple-element.1, %get-tuple-element.1), \
metadata={op_name="jit(advance)/while/body/commit/add"}, backend_config={"window_config":{"estimated_cycles":"5"}}
  %get-tuple-element.5 = f32[4]{0:T(128)} get-tuple-element(%while.2), index=1
  ROOT %tuple.3 = (s32[]{:T(128)}, bf16[8,128]{0,1:T(8,128)(2,1)}, bf16[2,64]{0,1:T(2,128)(2,1)}, \
/*index=3*/f32[4]{0:T(128)}) tuple(%add.1, %get-tuple-element.2, %get-tuple-element.3, %get-tuple-element.5)
}

ENTRY %main.1 (kernel.1: bf16[8,128], scale.1: f32[4], cache.1: bf16[2,64]) -> (s32[], bf16[2,64]) {
  %constant.1 = s32[]{:T(128)} constant(0)
  %kernel.1 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="inputs.kernel"}
  %scale.1 = f32[4]{0:T(128)} parameter(1)
  %cache.1 = bf16[2,64]{1,0:T(2,128)(2,1)} parameter(2)
  %slice-start.1 = ((bf16[8,128]{1,0:T(8,128)(2,1)}), bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, s32[]) \
slice-start(%kernel.1), slice={[0:8], [0:128]}
  %slice-done.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} slice-done(%slice-start.1)
  %custom-call.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} custom-call(%slice-done.1), custom_call_target="ConcatBitcast"
  %copy.1 = bf16[8,128]{0,1:T(8,128)(2,1)} copy(%custom-call.1), backend_config={"window_config":\
{"estimated_cycles":"1000"}}
  %copy-start.1 = (f32[4]{0:T(128)S(1)}, f32[4]{0:T(128)}, u32[]{:S(2)}) copy-start(%scale.1)
  %copy-done.1 = f32[4]{0:T(128)S(1)} copy-done(%copy-start.1)
  %fusion.2 = bf16[2,64]{0,1:T(2,128)(2,1)} fusion(%cache.1), kind=kLoop, calls=%fused_computation.2, \
backend_config={"window_config":{"estimated_cycles":"20"}}
  %tuple.1 = (s32[]{:T(128)}, bf16[8,128]{0,1:T(8,128)(2,1)}, bf16[2,64]{0,1:T(2,128)(2,1)}, \
/*index=3*/f32[4]{0:T(128)}) tuple(%constant.1, %copy.1, %fusion.2, %copy-done.1)
  %while.1 = (s32[]{:T(128)}, bf16[8,128]{0,1:T(8,128)(2,1)}, bf16[2,64]{0,1:T(2,128)(2,1)}, \
/*index=3*/f32[4]{0:T(128)}) while(%tuple.1), condition=%inner_condition, body=%body, \
metadata={op_name="jit(advance)/while"}
  %get-tuple-element.10 = s32[]{:T(128)} get-tuple-element(%while.1), index=0
  %get-tuple-element.11 = bf16[2,64]{0,1:T(2,128)(2,1)} get-tuple-element(%while.1), index=2
  %copy.2 = bf16[2,64]{1,0:T(2,128)(2,1)} copy(%get-tuple-element.11)
  ROOT %tuple.2 = (s32[]{:T(128)}, bf16[2,64]{1,0:T(2,128)(2,1)}) tuple(%get-tuple-element.10, %copy.2)
}
""".replace("SCORE", _SCORE)

# A product, a Pallas kernel, a copy and a graph of two kernels that the body calls; bookkeeping between them.
GPU = """\
HloModule jit_advance, is_scheduled=true

%gemm_fusion_dot_computation (parameter_0: bf16[2,64]) -> bf16[2,64] {
  ROOT %parameter_0 = bf16[2,64]{1,0} parameter(0)
}

%command_buffer (p: bf16[2,64]) -> bf16[2,64] {
  %p = bf16[2,64]{1,0} parameter(0)
  %loop_add_fusion = bf16[2,64]{1,0} fusion(%p), kind=kLoop, calls=%gemm_fusion_dot_computation, \
metadata={op_name="jit(advance)/while/body/commit/add"}
  ROOT %loop_add_fusion.1 = bf16[2,64]{1,0} fusion(%loop_add_fusion), kind=kLoop, calls=%gemm_fusion_dot_computation, \
metadata={op_name="jit(advance)/while/body/commit/add"}
}

%region_0 (arg: (s32[], bf16[2,64])) -> (s32[], bf16[2,64]) {
  %arg = (s32[], bf16[2,64]{1,0}) parameter(0)
  %get-tuple-element.1 = s32[] get-tuple-element(%arg), index=0
  %get-tuple-element.2 = bf16[2,64]{1,0} get-tuple-element(%arg), index=1
  %gemm_fusion_dot = bf16[2,64]{1,0} fusion(%get-tuple-element.2), kind=kCustom, calls=%gemm_fusion_dot_computation, \
metadata={op_name="SCORE/qkv/dot_general" scheduling_name="gemm_fusion_dot"}
  %bitcast.1 = bf16[2,64]{1,0} bitcast(%gemm_fusion_dot)
  %pallas_call.1 = (bf16[2,64]{1,0}) custom-call(%bitcast.1), custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="SCORE/cond/branch_0_fun/attend_1/pallas_call"}, backend_config={grid_x = 2 : i32, ir = "ML\\EFR("}
  %get-tuple-element.3 = bf16[2,64]{1,0} get-tuple-element(%pallas_call.1), index=0
  %all-gather-start = (bf16[1,64]{1,0}, bf16[2,64]{1,0}) all-gather-start(%get-tuple-element.3), channel_id=1
  %all-gather-done = bf16[2,64]{1,0} all-gather-done(%all-gather-start)
  %copy.1 = bf16[2,64]{1,0} copy(%all-gather-done)
  %call = bf16[2,64]{1,0} call(%copy.1), to_apply=%command_buffer
  ROOT %tuple.1 = (s32[], bf16[2,64]{1,0}) tuple(%get-tuple-element.1, %call)
}

%region_1 (arg.1: (s32[], bf16[2,64])) -> pred[] {
  %arg.1 = (s32[], bf16[2,64]{1,0}) parameter(0)
  ROOT %constant = pred[] constant(false)
}

ENTRY %main (x: bf16[2,64]) -> (s32[], bf16[2,64]) {
  %x = bf16[2,64]{1,0} parameter(0)
  %constant.1 = s32[] constant(0)
  %tuple.2 = (s32[], bf16[2,64]{1,0}) tuple(%constant.1, %x)
  ROOT %while.1 = (s32[], bf16[2,64]{1,0}) while(%tuple.2), condition=%region_1, body=%region_0
}
""".replace("SCORE", _SCORE)
