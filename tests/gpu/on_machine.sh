#!/bin/bash
# On the GPU machine, after tests.gpu.unpack: the plugin's entry point, what an older torch needs, the derived models, then all checks.
#   bash tests/gpu/on_machine.sh SITE MODELS OUT [--visit speculation] [--only NAME ...]  (from the folder that has tests/ and vllm_glm_exl3/)
set -u
site=$1 models=$2 out=$3
here=$(pwd)
mkdir -p "$out" "$site/vllm_glm_exl3-0.1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm-glm-exl3\nVersion: 0.1.0\n' > "$site/vllm_glm_exl3-0.1.0.dist-info/METADATA"
printf '[vllm.general_plugins]\nglm_exl3 = vllm_glm_exl3:register\n' > "$site/vllm_glm_exl3-0.1.0.dist-info/entry_points.txt"
export PYTHONUNBUFFERED=1 PYTHONPATH=$here:$site
if python3 -c 'import sys, torch; sys.exit(not torch.__version__ < "2.13")'; then export PYTHONPATH=$here/tests/gpu/older_torch:$PYTHONPATH; fi
case " ${*:4} " in
  *" speculation "*) [ -f "$models/reference.json" ] || python3 -m tests.gpu.models_chain "$models" || exit 1 ;;
  *) python3 -m tests.gpu.models "$models" derive || exit 1 ;;
esac
python3 -m tests.gpu.engine_checks "$models" "$out/engines.json" "${@:4}"
