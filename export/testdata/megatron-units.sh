#!/bin/sh
# plans/my plan.json for 16 ranks of h100, H100-80GB-SXM: autopar predicts 1.25 s per step,
# 52429 tokens/s. 32 blocks, 32 heads (8 of keys and values), width 4096, 8192 tokens, 64 sequences per step.
# Start it on every node in a checkout of Megatron-LM, with the arguments of data and tokenizer:
#   NODE_RANK=0 MASTER_ADDR=HOST sh FILE --data-path ... --tokenizer-type ... (vocabulary 128256)
# Differs: gradients are summed over ranks in 4 bytes, not 2.
set -eu
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "${NODE_RANK:-0}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
  pretrain_gpt.py \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --context-parallel-size 2 \
  --cp-comm-type all_gather \
  --pipeline-model-parallel-layout 'E,t*8|t*8|t*8|t*8,L' \
  --use-tp-pp-dp-mapping \
  --micro-batch-size 2 \
  --global-batch-size 64 \
  --use-distributed-optimizer \
  --num-layers 32 \
  --hidden-size 4096 \
  --ffn-hidden-size 14336 \
  --num-attention-heads 32 \
  --group-query-attention \
  --num-query-groups 8 \
  --seq-length 8192 \
  --max-position-embeddings 8192 \
  --make-vocab-size-divisible-by 1 \
  --attention-dropout 0 \
  --hidden-dropout 0 \
  --normalization RMSNorm \
  --position-embedding-type rope \
  --rotary-base 500000 \
  --untie-embeddings-and-output-weights \
  --disable-bias-linear \
  --swiglu \
  --bf16 \
  --train-iters 1000 \
  --lr 0.0006 \
  --min-lr 6e-05 \
  --lr-warmup-iters 80 \
  --lr-warmup-init 7.407407407407407e-06 \
  --lr-decay-iters 800 \
  --lr-decay-style cosine \
  --weight-decay 0.1 \
  --adam-beta1 0.9 \
  --adam-beta2 0.95 \
  --adam-eps 1e-08 \
  --clip-grad 1 \
  --eval-interval 2000 \
  --eval-iters 200 \
  --log-interval 1 \
  --seed 1337 \
  "$@"
