#!/bin/bash
# On the GPU machine, after tests.gpu.unpack: what torch 2.11 needs besides, the plugin's entry point, the derived models, then all checks.
#   bash tests/gpu/on_machine.sh SITE MODELS OUT        (from the folder that has tests/ and vllm_glm_exl3/)
set -u
site=$1 models=$2 out=$3
here=$(pwd)
shim=$site-older-torch
mkdir -p "$shim" "$out" "$site/vllm_glm_exl3-0.1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm-glm-exl3\nVersion: 0.1.0\n' > "$site/vllm_glm_exl3-0.1.0.dist-info/METADATA"
printf '[vllm.general_plugins]\nglm_exl3 = vllm_glm_exl3:register\n' > "$site/vllm_glm_exl3-0.1.0.dist-info/entry_points.txt"
export PYTHONUNBUFFERED=1 PYTHONPATH=$here:$site
torch=$(python3 -c 'import torch, os; print(torch.__version__, os.path.dirname(torch.__file__))')
if [[ $torch < 2.13 ]]; then
    cp -r tests/gpu/older_torch/. "$shim/"
    cc -shared -fPIC tests/gpu/older_torch/symbols.c -o "$shim/libsymbols.so" -L "${torch#* }/lib" -ltorch_cpu -lc10
    cc -shared -fPIC tests/gpu/older_torch/symbols.c -o "$shim/libsymbols.so" -L "${torch#* }/lib" -ltorch_cpu -lc10
    export PYTHONPATH=$shim:$PYTHONPATH
fi
python3 -m tests.gpu.engine_checks "$models" "$out/engines-moe.json" --only moe-dense moe-exl3 moe-exl3-graphs > "$out/moe.log" 2>&1 &
python3 -m tests.gpu.models "$models" derive > "$out/models.log" 2>&1 &
derived=$!
if [[ -d $shim ]] && ! timeout 120 python3 "$shim/probe.py" > "$out/deep_gemm.log" 2>&1; then export OLDER_TORCH_DEEP_GEMM=0; fi
wait $derived
python3 -m tests.gpu.engine_checks "$models" "$out/engines-glm.json" --only $(python3 -c '
from tests.gpu.engine_checks import ENGINES
print(*(engine.name for engine in ENGINES if engine.name.startswith("glm")))') > "$out/glm.log" 2>&1
wait
echo finished > "$out/finished"
