"""Published sizes of models that no family file describes, by model type. Facts only: `covist plan` counts with them.

Sources: the default configurations of transformers 5.22, which are published models where a line says so, and otherwise
public descriptions of the named checkpoint, of which not all could be compared with its own `config.json`: check a size
against your checkpoint with `covist doctor --model DIR`. Images are square, of about 1024 x 1024 pixels,
unless the model has its own size.
"""

from __future__ import annotations

from dataclasses import replace

from covist.plan import Geometry, Layer

LINEAR = (*(Layer("linear", reach=0),) * 3, Layer("full"))
"""Gated DeltaNet in three of four layers."""

# One token per 32 x 32 pixels. The 9B and the 35B-A3B are transformers' defaults; the others are from public
# descriptions of Qwen/Qwen3.5-*. Qwen3.6 has the sizes of Qwen3.5.
QWEN3_5 = Geometry(
    "qwen3.5-9b", 32, 4096, 12288, 16, 4, tokens=1024, budgets=(512, 256, 128), head_dim=256, pattern=LINEAR
)
QWEN3_5_27B = replace(QWEN3_5, name="qwen3.5-27b", layers=64, hidden=5120, intermediate=17408, heads=24)
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3.5-35b-a3b",
    layers=40,
    hidden=2048,
    intermediate=512,
    kv_heads=2,
    experts=256,
    active_experts=8,
    shared_experts=512,
)
# openbmb/MiniCPM-V-4.6: the text model of Qwen3.5-0.8B; 64 tokens for each of up to 9 slices, and for the whole image.
QWEN3_5_SMALL = replace(QWEN3_5, name="qwen3.5-0.8b", layers=24, hidden=1024, intermediate=3584, heads=8, kv_heads=2)


def _five_to_one(window: int, cached: int | None = None) -> tuple[Layer, ...]:
    """Five sliding windows before every full layer, which caches `cached` numbers."""
    return (*(Layer("sliding", reach=window),) * 5, Layer("full", cached=cached))


# google/gemma-3-*-it: 256 tokens for every image, whatever its size.
GEMMA3 = Geometry(
    "gemma-3-4b", 34, 2560, 10240, 8, 4, tokens=256, budgets=(128, 64, 32), head_dim=256, pattern=_five_to_one(1024)
)
# google/gemma-4-*-it: at most 280 tokens by default (70 to 1,120). Full layers have fewer and wider heads.
GEMMA4 = Geometry(
    "gemma-4-31b",
    *(60, 5376, 21504, 32, 16),
    tokens=280,
    budgets=(128, 64, 32),
    head_dim=256,
    pattern=_five_to_one(1024, cached=2 * 4 * 512),
)


def _sharing(layers: int, full_every: int, shared: int, kv_heads: int, mlp: int | None = None) -> tuple[Layer, ...]:
    """Layers of the small Gemma 4: the last `shared` read the cache of earlier ones, with MLPs of width `mlp`."""
    own = [
        Layer("full", cached=2 * kv_heads * 512) if (index + 1) % full_every == 0 else Layer("sliding", reach=512)
        for index in range(layers)
    ]
    last = [replace(layer, cached=0, mlp=mlp) for layer in own[layers - shared :]]
    return (*own[: layers - shared], *last)


# LiquidAI/LFM2-VL-*: 256 tokens for each of 2 x 2 tiles and for the whole image.
_LFM2 = "ccaccaccacacacac"  # convolution or attention
_LFM2_LONG = "ccaccacccacccacccacccaccaccacc"


def _convolutions(order: str) -> tuple[Layer, ...]:
    return tuple(Layer("full") if letter == "a" else Layer("conv", reach=0) for letter in order)


LFM2_VL = Geometry(
    *("lfm2-vl-1.6b", 16, 2048, 8192, 32, 8),
    tokens=5 * 256,
    budgets=(512, 256, 128),
    tiles=5,
    pattern=_convolutions(_LFM2),
)
# allenai/Molmo2-*: 23 x 23 tokens of overlapping crops and 14 x 14 of the whole image. The 8B is transformers' default;
# the 4B has the text model Qwen3-4B.
MOLMO2 = Geometry("molmo2-8b", 36, 4096, 12288, 32, 8, tokens=725, budgets=(320, 160, 80), head_dim=128)

PRESETS: dict[str, tuple[Geometry, ...]] = {
    "qwen3_5": (
        QWEN3_5,
        QWEN3_5_SMALL,
        replace(QWEN3_5_SMALL, name="qwen3.5-2b", hidden=2048, intermediate=6144),
        replace(QWEN3_5, name="qwen3.5-4b", hidden=2560, intermediate=9216),
        QWEN3_5_27B,
        replace(QWEN3_5_27B, name="qwen3.6-27b"),
    ),
    "qwen3_5_moe": (
        QWEN3_5_MOE,
        replace(
            QWEN3_5_MOE,
            name="qwen3.5-122b-a10b",
            layers=48,
            hidden=3072,
            intermediate=1024,
            heads=32,
            shared_experts=1024,
        ),
        replace(
            QWEN3_5_MOE,
            name="qwen3.5-397b-a17b",
            layers=60,
            hidden=4096,
            intermediate=1024,
            heads=32,
            experts=512,
            active_experts=10,
            shared_experts=1024,
        ),
        replace(QWEN3_5_MOE, name="qwen3.6-35b-a3b"),
    ),
    "minicpmv4_6": (replace(QWEN3_5_SMALL, name="minicpm-v-4.6", tokens=640, budgets=(320, 160, 80), tiles=10),),
    "gemma3": (
        GEMMA3,
        replace(GEMMA3, name="gemma-3-12b", layers=48, hidden=3840, intermediate=15360, heads=16, kv_heads=8),
        replace(
            GEMMA3, name="gemma-3-27b", layers=62, hidden=5376, intermediate=21504, heads=32, kv_heads=16, head_dim=128
        ),
    ),
    "gemma4": (
        GEMMA4,
        replace(
            GEMMA4,
            name="gemma-4-26b-a4b",
            layers=30,
            hidden=2816,
            intermediate=704,
            heads=16,
            kv_heads=8,
            experts=128,
            active_experts=8,
            shared_experts=2112,
            pattern=_five_to_one(1024, cached=2 * 2 * 512),
        ),
        replace(
            GEMMA4,
            name="gemma-4-e4b",
            layers=42,
            hidden=2560,
            intermediate=10240,
            heads=8,
            kv_heads=2,
            pattern=_sharing(42, full_every=6, shared=18, kv_heads=2),
        ),
        replace(
            GEMMA4,
            name="gemma-4-e2b",
            layers=35,
            hidden=1536,
            intermediate=6144,
            heads=8,
            kv_heads=1,
            pattern=_sharing(35, full_every=5, shared=20, kv_heads=1, mlp=12288),
        ),
    ),
    # zai-org/GLM-4.6V-Flash: transformers' default; one token per 28 x 28 pixels.
    "glm4v": (Geometry("glm-4.6v-flash", 40, 4096, 13696, 32, 2, tokens=1296, budgets=(512, 256, 128)),),
    # zai-org/GLM-4.6V: the text model of GLM-4.5-Air; its first layer has no experts.
    "glm4v_moe": (
        Geometry(
            *("glm-4.6v", 46, 4096, 1408, 96, 8),
            tokens=1296,
            budgets=(512, 256, 128),
            head_dim=128,
            experts=128,
            active_experts=8,
            shared_experts=1408,
            pattern=(Layer(mlp=10944), *(Layer(),) * 45),
        ),
    ),
    # moonshotai/Kimi-K2.5: the text model of Kimi K2, which caches latents of 512 and rotary keys of 64 numbers.
    "kimi_k25": (
        Geometry(
            *("kimi-k2.5", 61, 7168, 2048, 64, 64),
            tokens=1296,
            budgets=(512, 256, 128),
            head_dim=128,
            experts=384,
            active_experts=8,
            shared_experts=2048,
            pattern=(Layer("latent", cached=576, mlp=18432), *(Layer("latent", cached=576),) * 60),
        ),
    ),
    # meta-llama/Llama-4-Scout-17B-16E: transformers' default; 144 tokens for each of 3 x 3 tiles and the whole image.
    "llama4": (
        Geometry(
            *("llama-4-scout", 48, 5120, 8192, 40, 8),
            tokens=10 * 144,
            budgets=(640, 320, 160),
            tiles=10,
            experts=16,
            active_experts=1,
            shared_experts=8192,
            pattern=(*(Layer("chunked", reach=8192),) * 3, Layer("full")),
        ),
    ),
    "lfm2_vl": (
        LFM2_VL,
        replace(LFM2_VL, name="lfm2-vl-450m", hidden=1024, intermediate=4608, heads=16),
        replace(LFM2_VL, name="lfm2-vl-3b", layers=30, intermediate=10752, pattern=_convolutions(_LFM2_LONG)),
    ),
    "molmo2": (MOLMO2, replace(MOLMO2, name="molmo2-4b", hidden=2560, intermediate=9728)),
}
"""Model type -> geometries, of which the first represents the type."""
