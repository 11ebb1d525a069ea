"""Tiny configurations of models that others wrote: of each kind a function that makes it, and its inputs on the CPU."""

import torch
import transformers

_BASE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL = {**_BASE, "num_key_value_heads": 2}
_GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
_PAIR = {"vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

# By the start of the names of transformers' model and config.
LANGUAGE = {
    "Llama": _SMALL, "Mistral": _SMALL, "Qwen2": _SMALL, "Qwen3": {**_SMALL, "head_dim": 8}, "Gemma": {**_SMALL, "head_dim": 8},
    "Gemma2": {**_SMALL, "head_dim": 8}, "Gemma3Text": {**_SMALL, "head_dim": 8}, "Phi": _SMALL, "Phi3": _SMALL, "StableLm": _SMALL, "Cohere": _SMALL,
    "Olmo": _SMALL, "Olmo2": _SMALL, "Granite": _SMALL, "Starcoder2": _SMALL, "Glm": {**_SMALL, "head_dim": 8}, "Nemotron": _SMALL, "SmolLM3": _SMALL,
    "GPT2": _GPT, "GPTJ": {**_GPT, "rotary_dim": 4}, "GPTNeoX": _BASE,
    "GPTNeo": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
               "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2},
    "OPT": {**_BASE, "ffn_dim": 64, "word_embed_proj_dim": 32}, "Bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
    "Mpt": {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "Mamba": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "Mamba2": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1},
}
EXPERTS = {
    "Mixtral": {**_SMALL, "num_local_experts": 4}, "GptOss": {**_SMALL, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {**_SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8},
    "DeepseekV3": {**_BASE, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                   "moe_intermediate_size": 16, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
                   "first_k_dense_replace": 1, "n_shared_experts": 1},
    "Jamba": {**_SMALL, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4,
              "mamba_d_state": 4},
}
MASKED = {
    "Bert": _BASE, "Roberta": _BASE, "DistilBert": {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "Electra": {**_BASE, "embedding_size": 32}, "Albert": {**_BASE, "embedding_size": 16}, "Longformer": {**_BASE, "attention_window": 8},
    "DebertaV2": {**_BASE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "ModernBert": {**_BASE, "cls_token_id": 1, "sep_token_id": 2},
}
SEQUENCE_TO_SEQUENCE = {
    "T5": {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    "Bart": {**_PAIR, "max_position_embeddings": 64},
    "Whisper": {**_PAIR, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
}
IMAGES = {
    "ViT": {**_TOWER, "image_size": 32, "patch_size": 8}, "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
                                                                  "window_size": 4},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
}
_ENDS = {**dict.fromkeys((*LANGUAGE, *EXPERTS), "ForCausalLM"), **dict.fromkeys(MASKED, "ForMaskedLM"),
         **dict.fromkeys(SEQUENCE_TO_SEQUENCE, "ForConditionalGeneration"), **dict.fromkeys(IMAGES, "ForImageClassification"),
         "GPT2": "LMHeadModel", "XLNet": "LMHeadModel", "Wav2Vec2": "ForCTC", "CLIP": "Model"}
_OTHERS = {
    "XLNet": {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "Wav2Vec2": {**_TOWER, "vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
                 "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "pad_token_id": 0},
    "CLIP": {"text_config": {**_TOWER, "vocab_size": 64, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2},
             "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8}, "projection_dim": 16},
}
KINDS = {**LANGUAGE, **EXPERTS, **MASKED, **SEQUENCE_TO_SEQUENCE, **IMAGES, **_OTHERS}

# Kinds that `generate`; the others say a whole sequence at once.
GENERATING = [*LANGUAGE, *EXPERTS, *SEQUENCE_TO_SEQUENCE, "XLNet"]

# Plans for the kinds that bring none of their own: what is cut by columns, and what by rows. Of GPT2 they are parameters: its own class Conv1D
# holds a weight as (in, out), whose columns are the rows of a Linear's.
_DECODERS = [[f"model.{side}.layers.*.{part}" for side in ("encoder", "decoder") for part in parts]
             for parts in (("*attn.[qkv]_proj", "fc1"), ("*attn.out_proj", "fc2"))]
_BLOCKS = [["transformer.h.*.self_attention.query_key_value", "transformer.h.*.mlp.dense_h_to_4h"],
           ["transformer.h.*.self_attention.dense", "transformer.h.*.mlp.dense_4h_to_h"]]


def _encoder(base: str, attention: str = "attention.self.[qkv]*", out: str = "attention.output.dense", up: str = "intermediate.dense", down: str = "output.dense"):
    return [[f"{base}.{attention}", f"{base}.{up}"], [f"{base}.{out}", f"{base}.{down}"]]


_CUTS = {
    "StableLm": [["model.layers.*.self_attn.[qkv]_proj", "model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj"],
                 ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]],
    "GPT2": [["transformer.h.*.attn.c_proj.weight", "transformer.h.*.mlp.c_proj.weight"], ["transformer.h.*.attn.c_attn.weight", "transformer.h.*.mlp.c_fc.weight"]],
    "GPTNeo": [["transformer.h.*.attn.attention.[qkv]_proj", "transformer.h.*.mlp.c_fc"], ["transformer.h.*.attn.attention.out_proj", "transformer.h.*.mlp.c_proj"]],
    "OPT": _encoder("model.decoder.layers.*", "self_attn.[qkv]_proj", "self_attn.out_proj", "fc1", "fc2"), "Bloom": _BLOCKS, "Falcon": _BLOCKS,
    "Mpt": [["transformer.blocks.*.attn.Wqkv", "transformer.blocks.*.ffn.up_proj"], ["transformer.blocks.*.attn.out_proj", "transformer.blocks.*.ffn.down_proj"]],
    **dict.fromkeys(("Mamba", "Mamba2"), [["backbone.layers.*.mixer.in_proj"], ["backbone.layers.*.mixer.out_proj"]]),
    **{kind: _encoder(f"{kind.lower()}.encoder.layer.*") for kind in ("Bert", "Roberta", "Electra", "Longformer")},
    "DistilBert": _encoder("distilbert.transformer.layer.*", "attention.[qkv]_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2"),
    "Albert": _encoder("albert.encoder.albert_layer_groups.*.albert_layers.*", "attention.[qkv]*", "attention.dense", "ffn", "ffn_output"),
    "DebertaV2": _encoder("deberta.encoder.layer.*"), "ModernBert": _encoder("model.layers.*", "attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo"),
    "T5": [[f"{side}.block.*.layer.*.{part}" for side in ("encoder", "decoder") for part in parts]
           for parts in (("*Attention.[qkv]", "DenseReluDense.wi"), ("*Attention.o", "DenseReluDense.wo"))],
    "Bart": _DECODERS, "Whisper": _DECODERS, "ViT": _encoder("vit.layers.*", "attention.[qkv]_proj", "attention.o_proj", "mlp.fc1", "mlp.fc2"),
    "Swin": _encoder("swin.encoder.layers.*.blocks.*", "attention.[qkv]_proj", "attention.o_proj", "mlp.fc1", "mlp.fc2"),
    "ConvNext": [["convnext.encoder.stages.*.layers.*.pwconv1"], ["convnext.encoder.stages.*.layers.*.pwconv2"]],
    "XLNet": [["transformer.layer.*.ff.layer_1"], ["transformer.layer.*.ff.layer_2"]],
    "Wav2Vec2": _encoder("wav2vec2.encoder.layers.*", "attention.[qkv]_proj", "attention.out_proj", "feed_forward.intermediate_dense", "feed_forward.output_dense"),
    "CLIP": [[f"{side}_model.encoder.layers.*.{part}" for side in ("text", "vision") for part in parts]
             for parts in (("self_attn.[qkv]_proj", "mlp.fc1"), ("self_attn.out_proj", "mlp.fc2"))],
}
PLANS = {kind: {**dict.fromkeys(columns, "colwise"), **dict.fromkeys(rows, "rowwise")} for kind, (columns, rows) in _CUTS.items()}
WITHOUT_LINEAR_LAYERS = ["ResNet"]      # convolutions have no style


def make(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    start = "Gemma3" if kind == "Gemma3Text" else kind
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind])
    return getattr(transformers, start + _ENDS[kind])(config).eval()


def inputs_of(kind: str, batch: int = 4) -> dict:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(batch, *shape, generator=generator)

    ids = torch.randint(3, 32, (batch, 8), generator=generator)
    if kind in IMAGES:
        return {"pixel_values": draw(3, 32, 32), "labels": torch.arange(batch) % 2}
    if kind == "Whisper":
        return {"input_features": draw(8, 32), "labels": ids}
    if kind == "Wav2Vec2":
        return {"input_values": draw(400), "labels": ids[:, :4]}
    if kind == "CLIP":
        return {"input_ids": ids, "pixel_values": draw(3, 32, 32), "attention_mask": torch.ones_like(ids), "return_loss": True}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
