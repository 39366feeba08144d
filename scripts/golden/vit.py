"""Vision transformer (Dosovitskiy et al. 2021), with the names of timm."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) * (dim // self.heads) ** -0.5).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, heads, mlp_ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, dim * mlp_ratio)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, channels, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Vit(nn.Module):
    def __init__(
        self, dim, depth, heads, classes, mlp_ratio, channels, height, width, patch, pooling
    ):
        super().__init__()
        token = pooling == "ClassToken"
        tokens = (height // patch) * (width // patch) + token
        if token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, dim))
        self.patch_embed = PatchEmbed(channels, dim, patch)
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_ratio) for _ in range(depth)))
        # timm normalises before it takes the token, and after it takes the mean.
        self.norm = nn.LayerNorm(dim, eps=1e-6) if token else nn.Identity()
        self.fc_norm = nn.Identity() if token else nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x)
        if hasattr(self, "cls_token"):
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
            x = self.norm(self.blocks(x + self.pos_embed))[:, 0]
        else:
            x = self.fc_norm(self.blocks(x + self.pos_embed).mean(1))
        return self.head(x)


def torchvision_key(key):
    """The name of tensor `key` in torchvision's VisionTransformer."""
    for ours, theirs in [
        ("cls_token", "class_token"),
        ("pos_embed", "encoder.pos_embedding"),
        ("patch_embed.proj", "conv_proj"),
        ("blocks.", "encoder.layers.encoder_layer_"),
        ("norm1", "ln_1"),
        ("norm2", "ln_2"),
        ("attn.qkv.", "self_attention.in_proj_"),
        ("attn.proj", "self_attention.out_proj"),
        ("mlp.fc1", "mlp.0"),
        ("mlp.fc2", "mlp.3"),
        ("head.", "heads.head."),
    ]:
        key = key.replace(ours, theirs)
    return "encoder.ln." + key.removeprefix("norm.") if key.startswith("norm.") else key


def check():
    """Compares with torchvision and timm where they are installed."""
    try:
        import torchvision

        for name, dim, depth, heads in [("vit_b_16", 768, 12, 12), ("vit_l_16", 1024, 24, 16)]:
            theirs = getattr(torchvision.models, name)(num_classes=10).eval()
            nn.init.normal_(theirs.heads.head.weight)
            ours = Vit(dim, depth, heads, 10, 4, 3, 224, 224, 16, "ClassToken").eval()
            state = theirs.state_dict()
            names = {key: torchvision_key(key) for key in ours.state_dict()}
            ours.load_state_dict({key: state.pop(theirs) for key, theirs in names.items()})
            assert not state, state.keys()
            x = torch.randn(1, 3, 224, 224)
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
            print(f"vit: {name} equals that of torchvision")
    except ImportError:
        print("vit: torchvision is not installed, not compared")
    try:
        import timm
    except ImportError:
        print("vit: timm is not installed, not compared")
        return
    for pooling, pool in [("ClassToken", "token"), ("Mean", "avg")]:
        theirs = timm.models.vision_transformer.VisionTransformer(
            img_size=(32, 24), patch_size=4, num_classes=10, global_pool=pool, embed_dim=24,
            depth=3, num_heads=3, class_token=pool == "token",
        ).eval()  # fmt: skip
        nn.init.normal_(theirs.head.weight)
        ours = Vit(24, 3, 3, 10, 4, 3, 32, 24, 4, pooling).eval()
        ours.load_state_dict(theirs.state_dict(), strict=True)
        x = torch.randn(2, 3, 32, 24)
        torch.testing.assert_close(ours(x), theirs(x))
        print(f"vit: VisionTransformer with global_pool={pool} equals that of timm")
