"""Tiny, randomly initialised Hugging Face `transformers` models for compiler tests.  Nothing is downloaded.

    from archs import REGISTRY
    module, inputs = REGISTRY["bert"].build()            # eval-mode nn.Module, tuple of tensors
    module, inputs = REGISTRY["bert"].build(attn="sdpa") # same weights, other attention implementation
    fresh = REGISTRY["bert"].inputs(seed=1)              # same shapes, other values (and another amount of padding)

Every module takes plain tensors positionally and returns one float tensor.  Weights depend only on the registry
name and the config: each parameter is redrawn (see `redraw`) so that attention logits, position terms, masks and
norms all move the output; the libraries' own 0.02-std initialisation leaves softmax nearly uniform, which would hide
wrong masks, rotary embeddings and relative position terms.
"""

import dataclasses
import zlib
from collections.abc import Callable

import torch
import transformers as T
from torch import nn

REGISTRY: dict[str, "Arch"] = {}


class Wrap(nn.Module):
    """Binds positional tensors to the model's keyword arguments and picks the one output that is compared."""

    def __init__(self, model, names, pick, fixed):
        super().__init__()
        self.model, self.names, self.pick, self.fixed = model, tuple(names), pick, dict(fixed)

    def forward(self, *args):
        return self.pick(self.model(**dict(zip(self.names, args)), **self.fixed))


@dataclasses.dataclass(frozen=True)
class Arch:
    name: str
    group: str
    make: Callable  # () -> (model class, config, fixed keyword arguments, pick)
    feed: Callable  # (torch.Generator) -> {argument name: tensor}
    attn: bool  # False where the model has no attention implementation to choose
    moe: bool

    def inputs(self, seed=0):
        return tuple(self.feed(torch.Generator().manual_seed(1000 + seed), seed).values())

    def build(self, attn=None, experts=None, seed=0):
        """attn: None for the library's default ('sdpa' where supported), else 'eager' or 'sdpa'.
        experts: None for the default ('grouped_mm'), else 'batched_mm' or 'eager' (mixture-of-experts models)."""
        torch.manual_seed(0)
        cls, config, fixed, pick = self.make()
        kw = {}
        if attn is not None and self.attn:
            kw["attn_implementation"] = attn
        if experts is not None and self.moe:
            kw["experts_implementation"] = experts
        model = cls._from_config(config, **kw).eval().float()
        redraw(model, zlib.crc32(self.name.encode()))
        feed = self.feed(torch.Generator().manual_seed(1000 + seed), seed)
        module = Wrap(model, feed, pick, fixed).eval()
        calibrate(module, [torch.cat(t) for t in zip(*(self.inputs(100 + i) for i in range(4)))])
        return module, tuple(feed.values())

    def variants(self):
        """The (label, build keyword arguments) pairs worth trying; the first is the one to record."""
        if not self.attn:
            return [("default", {})]
        v = [("eager", {"attn": "eager"}), ("sdpa", {})]
        return v + (
            [("batched_mm", {"attn": "eager", "experts": "batched_mm"})] if self.moe else []
        )


# Parameters whose initial values carry meaning; they are jittered, not redrawn.
_JITTER = ("A_log", "time_mix", "logit_scale")


@torch.no_grad()
def redraw(model, seed):
    """Redraws matrices with std 1/sqrt(fan-in) (convolutions sqrt(2/fan-in)) and jitters vectors, so that every term
    shows in the output."""
    g = torch.Generator().manual_seed(seed)
    convs, gains = {}, set()
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.weight is not None:
            gains.add(id(m.weight))
        if isinstance(m, nn.modules.conv._ConvNd):
            transposed = isinstance(m, nn.modules.conv._ConvTransposeNd)
            fan = m.in_channels / m.groups
            for k, s in zip(m.kernel_size, m.stride):
                fan *= k / s if transposed else k
            convs.update(
                {id(p): (2 / fan) ** 0.5 for p in m.parameters(recurse=False) if p.dim() > 1}
            )
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        if id(p) in gains:  # some configs draw these with mean 0
            p.copy_(1 + 0.1 * noise)
        elif "original0" in name:  # weight-norm gain; torch's default shrinks by sqrt(3)
            p.mul_(3**0.5 * (1 + 0.1 * noise))
        elif p.dim() < 2 or any(k in name for k in _JITTER):
            p.add_(0.1 * noise)
        elif id(p) in convs:
            p.copy_(noise * convs[id(p)])
        elif "experts" in name and p.dim() == 3:
            p.copy_(noise / p.shape[-1] ** 0.5)
        else:
            p.copy_(noise / p[0].numel() ** 0.5)
    for name, b in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "codebook.embed")):  # zeros when not trained
            b.copy_(0.3 * torch.randn(b.shape, generator=g))


@torch.no_grad()
def calibrate(module, inputs):
    """Sets batch-norm statistics from one batch; otherwise deep convolution stacks fade to a constant output."""

    def hook(m, args):
        x = args[0]
        dims = [d for d in range(x.dim()) if d != 1]
        m.running_mean.copy_(x.mean(dims))
        m.running_var.copy_(x.var(dims, unbiased=False) + 0.01)

    norms = [
        m for m in module.modules() if isinstance(getattr(m, "running_var", None), torch.Tensor)
    ]
    handles = [m.register_forward_pre_hook(hook) for m in norms]
    if norms:
        module(*inputs)
    for h in handles:
        h.remove()


def arch(name, group, feed, attn=True, moe=False):
    def register(make):
        assert name not in REGISTRY, name
        REGISTRY[name] = Arch(name, group, make, feed, attn, moe)
        return make

    return register


# ---- inputs ---------------------------------------------------------------------------------------------------

VOCAB = 99


def _ids(g, seed, batch=2, length=12, pad=None, vocab=VOCAB, low=10):
    """Token ids and a right-padded mask: row 1 has 3 padded positions for seed 0 and 5 for seed 1."""
    ids = torch.randint(low, vocab, (batch, length), generator=g)
    mask = torch.ones(batch, length, dtype=torch.int64)
    if batch > 1:
        mask[1, -(3 + 2 * (seed % 2)) :] = 0
    if pad is not None:
        ids = torch.where(mask == 1, ids, pad)
    return ids, mask


def text(pad=None, length=12, batch=2, types=False, vocab=VOCAB):
    def feed(g, seed):
        ids, mask = _ids(g, seed, batch, length, pad, vocab)
        d = {"input_ids": ids, "attention_mask": mask}
        if types:
            d["token_type_ids"] = (
                (torch.arange(length) >= length // 2 + seed % 2)
                .long()
                .expand(batch, -1)
                .contiguous()
            )
        return d

    return feed


def tokens(length=8, batch=2):
    return lambda g, seed: {"input_ids": torch.randint(10, VOCAB, (batch, length), generator=g)}


def seq2seq(pad, length=12, target=7):
    def feed(g, seed):
        ids, mask = _ids(g, seed, 2, length, pad)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": torch.randint(10, VOCAB, (2, target), generator=g),
        }

    return feed


def image(size=32, batch=1, height=None):
    return lambda g, seed: {
        "pixel_values": torch.randn(batch, 3, height or size, size, generator=g)
    }


def wave(samples=800, batch=2, channel=False):
    shape = (batch, 1, samples) if channel else (batch, samples)
    return lambda g, seed: {"input_values": torch.randn(shape, generator=g)}


hidden = lambda o: o.last_hidden_state
logits = lambda o: o.logits
boxes = lambda o: torch.cat([o.logits, o.pred_boxes], -1)  # class scores and boxes of each query

ENC = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)
LM = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
S2S = dict(
    vocab_size=VOCAB,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=64,
    encoder_layerdrop=0.0,
    decoder_layerdrop=0.0,
)
VIT = dict(
    image_size=32,
    patch_size=8,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
)
NOCACHE = dict(use_cache=False)


# ---- text encoders --------------------------------------------------------------------------------------------


@arch("bert", "text encoder", text(pad=0, types=True))
def _():
    return T.BertForMaskedLM, T.BertConfig(**ENC), {}, logits


@arch("distilbert", "text encoder", text(pad=0))
def _():
    c = T.DistilBertConfig(
        vocab_size=VOCAB,
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=64,
        num_labels=5,
    )
    return T.DistilBertForTokenClassification, c, {}, logits


@arch("albert", "text encoder", text(pad=0, types=True))
def _():
    return (
        T.AlbertForMaskedLM,
        T.AlbertConfig(**ENC, embedding_size=16, num_hidden_groups=1),
        {},
        logits,
    )


@arch("deberta_v2", "text encoder", text(pad=0))
def _():
    c = T.DebertaV2Config(
        **ENC,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        num_labels=3,
        conv_kernel_size=3,
        conv_act="gelu",
    )
    return T.DebertaV2ForSequenceClassification, c, {}, logits


@arch("mpnet", "text encoder", text(pad=1))
def _():
    return T.MPNetModel, T.MPNetConfig(**ENC), {}, hidden


@arch("xlm_roberta", "text encoder", text(pad=1))
def _():
    return (
        T.XLMRobertaForTokenClassification,
        T.XLMRobertaConfig(**ENC, pad_token_id=1, num_labels=5),
        {},
        logits,
    )


@arch("big_bird", "text encoder", text(pad=0, length=64))
def _():
    c = T.BigBirdConfig(**ENC, attention_type="block_sparse", block_size=4, num_random_blocks=2)
    return T.BigBirdModel, c, {}, hidden


@arch("longformer", "text encoder", text(pad=1, length=32))
def _():
    return (
        T.LongformerModel,
        T.LongformerConfig(**ENC, attention_window=[8, 8], pad_token_id=1),
        {},
        hidden,
    )


# ---- encoder-decoders -----------------------------------------------------------------------------------------


@arch("t5", "encoder-decoder", seq2seq(pad=0))
def _():
    c = T.T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    return T.T5ForConditionalGeneration, c, NOCACHE, logits


@arch("bart", "encoder-decoder", seq2seq(pad=1))
def _():
    return T.BartForConditionalGeneration, T.BartConfig(**S2S), NOCACHE, logits


@arch("marian", "encoder-decoder", seq2seq(pad=98))
def _():
    c = T.MarianConfig(**S2S, pad_token_id=98, decoder_start_token_id=98, scale_embedding=True)
    return T.MarianMTModel, c, NOCACHE, logits


# ---- decoder language models, prefill pass --------------------------------------------------------------------


@arch("gpt2", "decoder LM", text())
def _():
    c = T.GPT2Config(
        vocab_size=VOCAB,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
    )
    return T.GPT2LMHeadModel, c, NOCACHE, logits


@arch("opt", "decoder LM", text(pad=1))
def _():
    c = T.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=16,
    )
    return T.OPTForCausalLM, c, NOCACHE, logits


@arch("llama", "decoder LM", text())
def _():
    return T.LlamaForCausalLM, T.LlamaConfig(**LM, num_key_value_heads=2), NOCACHE, logits


@arch(
    "llama_ids_only", "decoder LM", tokens(12)
)  # without a mask the library looks for packed sequences
def _():
    return T.LlamaForCausalLM, T.LlamaConfig(**LM, num_key_value_heads=2), NOCACHE, logits


@arch("mistral", "decoder LM", text())
def _():
    return (
        T.MistralForCausalLM,
        T.MistralConfig(**LM, num_key_value_heads=2, sliding_window=5),
        NOCACHE,
        logits,
    )


@arch("qwen2", "decoder LM", text())
def _():
    return T.Qwen2ForCausalLM, T.Qwen2Config(**LM, num_key_value_heads=2), NOCACHE, logits


@arch("gemma2", "decoder LM", text())
def _():
    c = T.Gemma2Config(
        **LM, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=5
    )
    return T.Gemma2ForCausalLM, c, NOCACHE, logits


@arch("phi3", "decoder LM", text())
def _():
    return T.Phi3ForCausalLM, T.Phi3Config(**LM, num_key_value_heads=2), NOCACHE, logits


@arch("olmo2", "decoder LM", text())
def _():
    return T.Olmo2ForCausalLM, T.Olmo2Config(**LM), NOCACHE, logits


@arch("cohere", "decoder LM", text())
def _():
    return (
        T.CohereForCausalLM,
        T.CohereConfig(**LM, num_key_value_heads=2, use_qk_norm=True, logit_scale=1.0),
        NOCACHE,
        logits,
    )


# ---- mixture of experts ---------------------------------------------------------------------------------------


@arch("mixtral", "mixture of experts", text(), moe=True)
def _():
    c = T.MixtralConfig(**LM, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    return T.MixtralForCausalLM, c, NOCACHE, logits


@arch("qwen2_moe", "mixture of experts", text(), moe=True)
def _():
    c = T.Qwen2MoeConfig(
        **LM,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
    )
    return T.Qwen2MoeForCausalLM, c, NOCACHE, logits


@arch("deepseek_v3", "mixture of experts", text(), moe=True)
def _():
    c = T.DeepseekV3Config(
        **LM,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
    )
    return T.DeepseekV3ForCausalLM, c, NOCACHE, logits


# ---- state space and linear attention -------------------------------------------------------------------------


@arch("mamba", "state space", tokens(), attn=False)
def _():
    c = T.MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2)
    return T.MambaForCausalLM, c, NOCACHE, logits


@arch("rwkv", "state space", tokens(), attn=False)
def _():
    c = T.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, context_length=32)
    return T.RwkvForCausalLM, c, NOCACHE, logits


# ---- vision ---------------------------------------------------------------------------------------------------


@arch("vit", "vision", image(batch=2))
def _():
    return T.ViTForImageClassification, T.ViTConfig(**VIT, num_labels=10), {}, logits


@arch("beit", "vision", image(batch=2))
def _():
    c = T.BeitConfig(**VIT, num_labels=10, use_relative_position_bias=True)
    return T.BeitForImageClassification, c, {}, logits


@arch("swin", "vision", image(batch=2))
def _():
    c = T.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
    )
    return T.SwinForImageClassification, c, {}, logits


@arch("convnext", "vision", image(batch=2), attn=False)
def _():
    c = T.ConvNextConfig(
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 2, 1],
        num_labels=10,
        layer_scale_init_value=0.3,
    )
    return T.ConvNextForImageClassification, c, {}, logits


@arch("resnet", "vision", image(batch=2), attn=False)
def _():
    c = T.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 2, 1, 1], num_labels=10
    )
    return T.ResNetForImageClassification, c, {}, logits


@arch("mobilenet_v2", "vision", image(size=64, batch=2), attn=False)
def _():
    return (
        T.MobileNetV2ForImageClassification,
        T.MobileNetV2Config(depth_multiplier=0.25, num_labels=10),
        {},
        logits,
    )


@arch("mobilevit", "vision", image(size=64), attn=False)
def _():
    c = T.MobileViTConfig(
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
        num_attention_heads=2,
        expand_ratio=2.0,
        num_labels=10,
    )
    return T.MobileViTForImageClassification, c, {}, logits


@arch("efficientnet", "vision", image(size=64), attn=False)
def _():
    c = T.EfficientNetConfig(
        image_size=64,
        width_coefficient=0.5,
        depth_coefficient=0.5,
        hidden_dim=640,
        depthwise_padding=[],
        num_labels=10,
    )
    return T.EfficientNetForImageClassification, c, {}, logits


@arch("poolformer", "vision", image(batch=2), attn=False)
def _():
    c = T.PoolFormerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_labels=10, layer_scale_init_value=0.3
    )
    return T.PoolFormerForImageClassification, c, {}, logits


@arch("segformer", "vision", image(size=64))
def _():
    c = T.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        num_labels=5,
    )
    return T.SegformerForSemanticSegmentation, c, {}, logits


@arch("dpt", "vision", image(size=32))
def _():
    c = T.DPTConfig(
        **{**VIT, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
    )
    return T.DPTForDepthEstimation, c, {}, lambda o: o.predicted_depth


@arch(
    "detr",
    "vision",
    lambda g, seed: {
        "pixel_values": torch.randn(1, 3, 64, 64, generator=g),
        "pixel_mask": (torch.arange(64) < 48 + 8 * (seed % 2))
        .long()
        .expand(1, 64, 64)
        .contiguous(),
    },
)
def _():
    back = T.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    c = T.DetrConfig(
        backbone_config=back,
        num_queries=5,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_labels=6,
    )
    return T.DetrForObjectDetection, c, {}, boxes


@arch(
    "sam",
    "vision",
    lambda g, seed: {
        "pixel_values": torch.randn(1, 3, 32, 32, generator=g),
        "input_points": 32 * torch.rand(1, 1, 2, 2, generator=g),
    },
)
def _():
    v = dict(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=4,
        window_size=4,
        global_attn_indexes=[1],
        num_pos_feats=8,
        mlp_dim=64,
    )
    p = dict(hidden_size=16, image_size=32, patch_size=4, mask_input_channels=4)
    d = dict(
        hidden_size=16,
        mlp_dim=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        iou_head_hidden_dim=16,
    )
    c = T.SamConfig(vision_config=v, prompt_encoder_config=p, mask_decoder_config=d)
    return T.SamModel, c, {}, lambda o: o.pred_masks


# ---- audio ----------------------------------------------------------------------------------------------------


_W2V = dict(
    vocab_size=20,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    conv_dim=[16, 16, 16],
    conv_stride=[5, 2, 2],
    conv_kernel=[10, 3, 2],
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)


@arch("wav2vec2", "audio", wave())
def _():
    return T.Wav2Vec2ForCTC, T.Wav2Vec2Config(**_W2V), {}, logits


@arch(
    "audio_spectrogram_transformer",
    "audio",
    lambda g, seed: {"input_values": torch.randn(2, 48, 32, generator=g)},
)
def _():
    c = T.ASTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        patch_size=8,
        frequency_stride=6,
        time_stride=6,
        max_length=48,
        num_mel_bins=32,
        num_labels=10,
    )
    return T.ASTForAudioClassification, c, {}, logits


@arch("sew", "audio", wave())
def _():
    return T.SEWForCTC, T.SEWConfig(**_W2V, squeeze_factor=2), {}, logits


@arch("encodec", "audio", wave(samples=160, batch=1, channel=True), attn=False)
def _():
    c = T.EncodecConfig(
        target_bandwidths=[1.5, 3.0],
        sampling_rate=800,
        hidden_size=16,
        num_filters=4,
        upsampling_ratios=[4, 2],
        codebook_size=32,
        codebook_dim=16,
    )
    return T.EncodecModel, c, {}, lambda o: o.audio_values


# ---- multimodal -----------------------------------------------------------------------------------------------


def _clip_feed(g, seed):
    ids, mask = _ids(g, seed, 2, 12, pad=1)
    ids[0, -1] = 2
    ids[1, int(mask[1].sum()) - 1] = 2  # end-of-text token, where CLIP reads the sentence embedding
    return {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 32, 32, generator=g),
        "attention_mask": mask,
    }


_CT = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
_CV = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
)


@arch("clip", "multimodal", _clip_feed)
def _():
    c = T.CLIPConfig(
        text_config=dict(**_CT, projection_dim=16, pad_token_id=1, bos_token_id=0, eos_token_id=2),
        vision_config=dict(**_CV, projection_dim=16),
        projection_dim=16,
    )
    return T.CLIPModel, c, {}, lambda o: o.logits_per_image


@arch("siglip", "multimodal", _clip_feed)
def _():
    c = T.SiglipConfig(
        text_config=dict(**_CT, pad_token_id=1, bos_token_id=0, eos_token_id=2), vision_config=_CV
    )
    return T.SiglipModel, c, {}, lambda o: torch.cat([o.image_embeds, o.text_embeds])


def _llava_feed(g, seed):
    ids, mask = _ids(g, seed, 2, 26, vocab=95)
    ids[:, 2:18] = 97  # the 16 patches of a 32x32 image
    return {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 32, 32, generator=g),
        "attention_mask": mask,
    }


@arch("llava", "multimodal", _llava_feed)
def _():
    c = T.LlavaConfig(
        vision_config=T.CLIPVisionConfig(**_CV, projection_dim=16),
        text_config=T.LlamaConfig(**LM, num_key_value_heads=2),
        image_token_id=97,
        image_token_index=97,
        image_seq_length=16,
    )
    return T.LlavaForConditionalGeneration, c, NOCACHE, logits


# ---- time series ----------------------------------------------------------------------------------------------


@arch(
    "patchtst",
    "time series",
    lambda g, seed: {"past_values": torch.randn(2, 32, 3, generator=g).cumsum(1)},
)
def _():
    c = T.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=4,
        prediction_length=8,
        d_model=32,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=64,
    )
    return T.PatchTSTForPrediction, c, {}, lambda o: o.prediction_outputs
