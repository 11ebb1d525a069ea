"""Small models of the kinds that people train, by what they are made of: each is a module and its inputs."""

import math

import torch
import torch.nn.functional as F
from torch import nn


# ---- images ----------------------------------------------------------------------------------------------------------

class Bottleneck(nn.Module):
    """Of a ResNet."""

    def __init__(self, ins, outs, stride=1):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(ins, 4, 1, bias=False), nn.Conv2d(4, 4, 3, stride, 1, bias=False), nn.Conv2d(4, outs, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (4, 4, outs))
        self.down = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))

    def forward(self, x):
        out = F.relu(self.norms[0](self.a(x)), inplace=True)
        out = F.relu(self.norms[1](self.b(out)), inplace=True)
        return F.relu(self.norms[2](self.c(out)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.layers = nn.Sequential(Bottleneck(8, 16), Bottleneck(16, 16, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x):
        return self.head(self.layers(self.stem(x)))


class MobileNet(nn.Module):
    """Inverted residuals of depthwise convolutions, squeeze and excitation, hard activations."""

    def __init__(self):
        super().__init__()
        self.expand, self.depth = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.squeeze, self.excite, self.project = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1), nn.Conv2d(12, 3, 1)
        self.head = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU6(), nn.LeakyReLU(0.1), nn.PReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, x):
        out = F.hardswish(self.depth(F.hardswish(self.expand(x))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(out, 1)))))
        return self.head(x + self.project(out * scale))


class Dense(nn.Module):
    """Concatenated features, means of windows, channels in another order (ShuffleNet), local response norm (AlexNet)."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(n, 4, 3, padding=1) for n in (4, 8, 12))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (4, 8, 12))
        self.lrn, self.out = nn.LocalResponseNorm(3), nn.Linear(16, 3)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        n, c, h, w = x.shape
        x = x.view(n, 4, c // 4, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        x = self.lrn(F.avg_pool2d(x, 2))
        return self.out(F.max_pool2d(x, 2).mean((2, 3)))


class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x):
        x = self.stem(x)
        out = self.norm(self.depth(x).permute(0, 2, 3, 1))
        out = self.gamma * self.down(F.gelu(self.up(out)))
        return x + out.permute(0, 3, 1, 2)


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16) * 0.1), nn.Parameter(torch.randn(1, 5, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Swin(nn.Module):
    """Attention within windows that are shifted, with a table of biases by relative place."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)
        self.table = nn.Parameter(torch.randn(9, 2) * 0.1)
        at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + 1
        self.register_buffer("number", apart[..., 0] * 3 + apart[..., 1])

    def forward(self, x):
        n, h, w, c = x.shape
        out = torch.roll(self.norm(x), (-1, -1), (1, 2))
        out = out.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(out).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.number.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        scores = (q * 0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
        out = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, c))
        out = out.view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return x + torch.roll(out, (1, 1), (1, 2))


class Segmenter(nn.Module):
    """Dilated convolutions, features of several sizes brought to one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=2, dilation=2), nn.Conv2d(12, 4, 1)
        self.norm = nn.InstanceNorm2d(6, affine=True)

    def forward(self, x):
        fine = F.elu(self.a(x))
        coarse = F.selu(self.norm(self.b(F.avg_pool2d(fine, 2))))
        pooled = F.interpolate(F.adaptive_avg_pool2d(coarse, 2), size=fine.shape[2:], mode="bilinear", align_corners=True)
        coarse = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        return self.c(torch.cat([fine, coarse + pooled], 1)).log_softmax(1)


class Volumes(nn.Module):
    """Of three dims, with pooling and transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Conv3d(1, 4, 3, padding=1), nn.ConvTranspose3d(4, 2, 2, 2), nn.BatchNorm3d(4)

    def forward(self, x):
        return self.b(F.max_pool3d(F.relu(self.norm(self.a(x))), 2))


# ---- words -----------------------------------------------------------------------------------------------------------

class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(8, 16), nn.Embedding(2, 16)
        self.norm, self.attention = nn.LayerNorm(16, eps=1e-12), nn.MultiheadAttention(16, 4, batch_first=True)
        self.pooler, self.vocabulary_bias = nn.Linear(16, 16), nn.Parameter(torch.zeros(20))

    def forward(self, numbers):
        mask = (numbers != 0).to(torch.float32)
        kinds = torch.zeros_like(numbers)
        places = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
        x = self.norm(self.words(numbers) + self.places(places) + self.kinds(kinds))
        x = x + self.attention(x, x, x, key_padding_mask=(1.0 - mask) * torch.finfo(torch.float32).min, need_weights=False)[0]
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.linear(x, self.words.weight, self.vocabulary_bias) + pooled.mean()


class Llama(nn.Module):
    """Rotary places, RMS norm by hand, shared heads, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))
        self.gate, self.up, self.down = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False), nn.Linear(24, 16, bias=False)
        self.norms = nn.ParameterList(torch.ones(16) for _ in range(3))
        self.register_buffer("rates", 1.0 / 100 ** (torch.arange(0, 4, 2).float() / 4), persistent=False)

    @staticmethod
    def norm(x, weight):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    @staticmethod
    def turned(x):
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
        return torch.cat((-b, a), -1)

    def forward(self, numbers):
        n, length = numbers.shape
        x = self.words(numbers)
        angles = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), self.rates)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos()[None, None], angles.sin()[None, None]
        out = self.norm(x, self.norms[0])
        q, k, v = (w(out).view(n, length, -1, 4).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = (one * cos + self.turned(one) * sin for one in (q, k))
        k, v = (one[:, :, None].expand(n, 2, 2, length, 4).reshape(n, 4, length, 4) for one in (k, v))
        mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(4) + mask
        out = F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
        x = x + self.o(out.transpose(1, 2).contiguous().view(n, length, -1))
        out = self.norm(x, self.norms[1])
        x = x + self.down(F.silu(self.gate(out)) * self.up(out))
        return F.linear(self.norm(x, self.norms[2]), self.words.weight)


class T5(nn.Module):
    """Biases by buckets of relative places; an encoder and a decoder with cross-attention."""

    def __init__(self):
        super().__init__()
        self.words, self.bias, self.qkv = nn.Embedding(20, 16), nn.Embedding(8, 4), nn.Linear(16, 48, bias=False)
        self.transformer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, numbers):
        length = numbers.shape[1]
        at = torch.arange(length, device=numbers.device)
        apart = -torch.min(at[None, :] - at[:, None], torch.zeros_like(at[None, :] - at[:, None]))
        far = 4 + (torch.log(apart.float().clamp(min=1) / 4) / math.log(4) * 4).to(torch.long)
        bucket = torch.where(apart < 4, apart, torch.min(far, torch.full_like(far, 7)))
        x = self.words(numbers)
        q, k, v = (one.view(*numbers.shape, 4, 4).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(3, 2) + self.bias(bucket).permute(2, 0, 1)[None]
        x = x + (F.softmax(scores.float(), -1).type_as(scores) @ v).transpose(1, 2).flatten(2)
        return self.transformer(x, x.flip(1), memory_key_padding_mask=numbers == 0)


class Gpt2(nn.Module):
    """Products with turned weights, parts of one projection, the causal mask as a buffer, tanh's gelu."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.w, self.b = nn.Parameter(torch.randn(16, 48) * 0.1), nn.Parameter(torch.zeros(48))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool)).view(1, 1, 8, 8))

    def forward(self, numbers):
        n, length = numbers.shape
        x = self.norm(self.words(numbers))
        q, k, v = torch.addmm(self.b, x.view(-1, 16), self.w).view(n, length, 48).split(16, 2)
        q, k, v = (one.view(n, length, 4, 4).permute(0, 2, 1, 3) for one in (q, k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / 2.0
        scores = torch.where(self.mask[:, :, :length, :length], scores, torch.finfo(scores.dtype).min)
        x = x + torch.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).reshape(n, length, 16)
        return F.gelu(x, approximate="tanh") @ self.words.weight.t()


# ---- sequences by steps ----------------------------------------------------------------------------------------------

class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(6, 5, num_layers=2, batch_first=True, **options)
        self.out = nn.LazyLinear(3)

    def forward(self, x):
        out, state = self.rnn(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.out(out).sum(1) + state.mean()


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(6, 5), nn.GRUCell(5, 5), nn.RNNCell(5, 5)

    def forward(self, x):
        state, other, last = (x.new_zeros(x.shape[0], 5),) * 2, x.new_zeros(x.shape[0], 5), None
        for step in x.unbind(1):
            state = self.lstm(step, state)
            other = self.gru(state[0], other)
            last = self.rnn(other, last)
        return last


class Recognizer(nn.Module):
    """Of speech: convolutions over time, a GRU, and CTC."""

    def __init__(self):
        super().__init__()
        self.conv, self.gru, self.out = nn.Conv1d(6, 8, 3, 2, 1), nn.GRU(8, 5, bidirectional=True), nn.Linear(10, 7)

    def forward(self, x):
        x = F.glu(torch.cat([self.conv(x.transpose(1, 2))] * 2, 1), 1).permute(2, 0, 1)
        return self.out(self.gru(x)[0]).log_softmax(-1).transpose(0, 1)


# ---- pictures from noise ---------------------------------------------------------------------------------------------

class UNet(nn.Module):
    """Group norm, SiLU, embeddings of time steps, attention over places and to words, skips."""

    def __init__(self):
        super().__init__()
        self.a, self.time = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
        self.norm, self.down, self.middle = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.query, self.pair = nn.Linear(8, 8), nn.Linear(6, 16)
        self.up, self.turned, self.out = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x, steps, words):
        rates = torch.exp(-math.log(100.0) * torch.arange(4, dtype=torch.float32, device=x.device) / 4)
        angles = steps[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.a(x) + time[:, :, None, None]
        out = self.down(F.silu(self.norm(first)))
        n, c, h, w = out.shape
        q = self.query(out.view(n, c, h * w).transpose(1, 2))
        k, v = self.pair(words).chunk(2, -1)
        weights = torch.softmax(torch.einsum("nqc,nkc->nqk", q, k) * c ** -0.5, -1)
        out = out + torch.einsum("nqk,nkc->nqc", weights, v).transpose(1, 2).reshape(n, c, h, w)
        out = self.middle(out)
        out = self.up(F.interpolate(out, scale_factor=2.0, mode="nearest")) + self.turned(out)
        return self.out(torch.cat([out, first], 1))


class Vae(nn.Module):
    """Means and variances, with given noise, vectors of a codebook, and pixels out of channels."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.codes = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(4, 48, 1), nn.Embedding(6, 4)

    def forward(self, x, noise):
        mean, variance = self.encode(F.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, 1:-1]).chunk(2, 1)
        variance = variance.clamp(-30.0, 20.0)
        z = mean + torch.exp(0.5 * variance) * noise
        flat = z.permute(0, 2, 3, 1).reshape(-1, 4)
        number = torch.cdist(flat, self.codes.weight).argmin(1)
        found = self.codes(number).view(z.shape[0], z.shape[2], z.shape[3], 4).permute(0, 3, 1, 2)
        cost = F.mse_loss(found.detach(), z) + F.mse_loss(found, z.detach())
        divergence = -0.5 * torch.sum(1 + variance - mean.pow(2) - variance.exp())
        out = F.pixel_shuffle(self.decode(z + (found - z).detach()), 4)
        return torch.sigmoid(out), cost + 0.01 * divergence


class Judge(nn.Module):
    """The norms of weights that GANs have."""

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
        self.judge = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))

    def forward(self, x):
        return self.judge(F.leaky_relu(self.conv(x), 0.2).mean((2, 3)))


# ---- others ----------------------------------------------------------------------------------------------------------

class Graph(nn.Module):
    """Messages along edges, added up and averaged at nodes."""

    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(8, 5), nn.Linear(9, 3)

    def forward(self, x, sources, targets):
        sent = F.softplus(self.message(torch.cat([x[sources], x[targets]], -1)))
        total = torch.zeros(x.shape[0], 5, device=x.device).index_add_(0, targets, sent)
        count = torch.zeros(x.shape[0], device=x.device).scatter_add_(0, targets, torch.ones_like(targets, dtype=x.dtype))
        return self.update(torch.cat([x, total / count.clamp(min=1)[:, None]], -1))


class Recommender(nn.Module):
    """Means of bags of numbers, products of pairs, wide and deep."""

    def __init__(self):
        super().__init__()
        self.items, self.users = nn.Embedding(20, 4), nn.Embedding(10, 4)
        self.deep = nn.Sequential(nn.Linear(8, 6), nn.Mish(), nn.Linear(6, 1))

    def forward(self, items, users):
        bag, user = self.items(items).mean(1), self.users(users)
        pairs = torch.bmm(bag.unsqueeze(1), user.unsqueeze(2)).flatten(1)
        return (self.deep(torch.cat([bag, user], 1)) + pairs).squeeze(1)


class Ranker(nn.Module):
    """Bags of numbers cut by offsets: sums by weights, means and maxima, and products of pairs."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode=mode, padding_idx=0) for mode in ("sum", "mean", "max"))
        self.weights, self.pairs, self.out = nn.Embedding(20, 1), nn.Bilinear(4, 4, 5), nn.Linear(9, 1)

    def forward(self, items):
        flat = items.flatten()
        starts = torch.tensor([0, 5, 5, 13]).to(items.device)       # the second bag is empty
        added = self.bags[0](flat, starts, per_sample_weights=self.weights(flat).flatten())
        mean, most = self.bags[1](flat, starts), self.bags[2](items)
        return self.out(F.hardshrink(torch.cat([self.pairs(added, mean), most], 1), 0.01))


class SpatialTransformer(nn.Module):
    """Images that are turned and scaled by what a small net sees, then fields of offsets (optical flow)."""

    def __init__(self):
        super().__init__()
        self.look, self.turn = nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="replicate"), nn.Linear(16, 6)
        self.flow = nn.Conv2d(3, 2, 3, padding=1)
        with torch.no_grad():
            self.turn.bias.copy_(torch.tensor([1.0, 0, 0.1, 0, 0.9, 0]))

    def forward(self, x):
        seen = F.adaptive_max_pool2d(F.relu(self.look(x)), (2, 2))
        grid = F.affine_grid(self.turn(seen.flatten(1) * 0.1).view(-1, 2, 3), x.shape, align_corners=False)
        x = F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
        return F.grid_sample(x, grid + 0.1 * self.flow(x).permute(0, 2, 3, 1), padding_mode="zeros", align_corners=True)


class Relative(nn.Module):
    """Attention with a learned bias by relative place, shared by the batch, and heads that share keys."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.bias = nn.Linear(16, 16), nn.Linear(16, 16), nn.Parameter(torch.randn(4, 11) * 0.1)

    def forward(self, x):
        n, length, _ = x.shape
        q = self.q(x).view(n, length, 4, 4).transpose(1, 2)
        k, v = (one.view(n, length, 2, 4).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        at = torch.arange(length, device=x.device)
        bias = self.bias[:, at[None] - at[:, None] + length - 1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        k, v = (one.repeat_interleave(2, 1) for one in (k, v))
        return out + F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None] + out.mean((1, 3))[:, None, None])


def images(count=4, size=8, channels=3):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(5))


def numbers(rows=4, length=6, below=20):
    out = torch.randint(1, below, (rows, length), generator=torch.Generator().manual_seed(6))
    out[1, -2:] = 0
    return out


def floats(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


# The module and its inputs, of which those of as many rows as the first are the batch.
KINDS = {
    "ResNet": (ResNet, lambda: [images(4, 16)]), "MobileNet": (MobileNet, lambda: [images()]), "DenseNet": (Dense, lambda: [images(channels=4)]),
    "ConvNeXt": (ConvNext, lambda: [images()]), "vision transformer": (VisionTransformer, lambda: [images()]),
    "Swin": (Swin, lambda: [floats(4, 4, 4, 8)]), "segmentation": (Segmenter, lambda: [images()]), "volumes": (Volumes, lambda: [floats(4, 1, 4, 4, 4)]),
    "BERT": (Bert, lambda: [numbers()]), "Llama": (Llama, lambda: [numbers()]), "T5": (T5, lambda: [numbers()]), "GPT-2": (Gpt2, lambda: [numbers()]),
    "RNN": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), lambda: [floats(4, 5, 6)]),
    "LSTM": (lambda: Recurrent(nn.LSTM, bidirectional=True), lambda: [floats(4, 5, 6)]),
    "LSTM with projections": (lambda: Recurrent(nn.LSTM, proj_size=4), lambda: [floats(4, 5, 6)]),
    "GRU": (lambda: Recurrent(nn.GRU), lambda: [floats(4, 5, 6)]), "cells": (Cells, lambda: [floats(4, 3, 6)]),
    "speech": (Recognizer, lambda: [floats(4, 12, 6)]),
    "U-Net": (UNet, lambda: [images(), torch.tensor([1, 5, 9, 3]), floats(4, 3, 6)]),
    "VAE": (Vae, lambda: [images(), floats(4, 4, 2, 2)]), "GAN": (Judge, lambda: [images()]),
    "graph": (Graph, lambda: [floats(4, 4), torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([1, 2, 3, 0, 2, 0])]),
    "ranking": (Ranker, lambda: [numbers()]), "spatial transformer": (SpatialTransformer, lambda: [images(size=7)]),
    "relative places": (Relative, lambda: [floats(4, 6, 16)]),
    "recommender": (Recommender, lambda: [numbers(), torch.tensor([1, 5, 9, 3])]),
}

# Of predictions (4, 6) and targets: those that are not written out above.
LOSSES = {
    "cross-entropy, smoothed and weighted": lambda x, y, z: F.cross_entropy(x, z, weight=torch.linspace(0.5, 1.5, 6, device=x.device), label_smoothing=0.1),
    "cross-entropy of probabilities": lambda x, y, z: F.cross_entropy(x, y.softmax(-1)),
    "binary cross-entropy": lambda x, y, z: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary cross-entropy with logits": lambda x, y, z: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.linspace(1, 2, 6, device=x.device)),
    "smooth l1": lambda x, y, z: F.smooth_l1_loss(x, y), "Huber": lambda x, y, z: F.huber_loss(x, y, delta=0.5), "l1": lambda x, y, z: F.l1_loss(x, y),
    "divergence": lambda x, y, z: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "triplets": lambda x, y, z: F.triplet_margin_loss(x, y, x.flip(0)),
    "cosine": lambda x, y, z: F.cosine_embedding_loss(x, y, torch.ones(4, device=x.device)),
    "ranking": lambda x, y, z: F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(4, device=x.device), margin=0.1),
    "hinge": lambda x, y, z: F.hinge_embedding_loss(x, y.sign(), margin=0.5),
    "many labels": lambda x, y, z: F.multilabel_soft_margin_loss(x, (y > 0).float()),
    "normal": lambda x, y, z: F.gaussian_nll_loss(x, y, y.exp()), "Poisson": lambda x, y, z: F.poisson_nll_loss(x, y.exp()),
    "margins": lambda x, y, z: F.multi_margin_loss(x, z, p=2, margin=0.5, weight=torch.linspace(0.5, 1.5, 6, device=x.device)),
    "margins of many labels": lambda x, y, z: F.multilabel_margin_loss(x, torch.tensor([[0, 3, -1, 0, 0, 0]] * 4).to(x.device)),
    "soft margin": lambda x, y, z: F.soft_margin_loss(x, y.sign()),
}
