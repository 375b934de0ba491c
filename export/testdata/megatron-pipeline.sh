#!/bin/sh
# plans/my plan.json for 16 ranks of h100, H100-80GB-SXM: autopar predicts 1.25 s per step,
# 52429 tokens/s. 12 blocks, 12 heads, width 768, 1024 tokens, 64 sequences per step.
# Start it on every node in a checkout of Megatron-LM, with the arguments of data and tokenizer:
#   NODE_RANK=0 MASTER_ADDR=HOST sh FILE --data-path ... --tokenizer-type ... (vocabulary 50304)
set -eu
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "${NODE_RANK:-0}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
  pretrain_gpt.py \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 4 \
  --sequence-parallel \
  --pipeline-model-parallel-layout 'E,t*3|t*3|t*4|t*2,L' \
  --micro-batch-size 4 \
  --global-batch-size 64 \
  --use-distributed-optimizer \
  --overlap-param-gather \
  --overlap-grad-reduce \
  --recompute-granularity full \
  --recompute-method block \
  --recompute-num-layers 2 \
  --num-layers 12 \
  --hidden-size 768 \
  --ffn-hidden-size 3072 \
  --num-attention-heads 12 \
  --seq-length 1024 \
  --max-position-embeddings 1024 \
  --make-vocab-size-divisible-by 1 \
  --attention-dropout 0 \
  --hidden-dropout 0 \
  --no-bias-gelu-fusion \
  --train-iters 1000 \
  --lr 0.0006 \
  --min-lr 6e-05 \
  --lr-warmup-iters 2000 \
  --lr-warmup-init 2.998500749625187e-07 \
  --lr-decay-iters 600000 \
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
