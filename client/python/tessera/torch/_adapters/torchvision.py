"""torchvision's own ops that detection goes by, `nms` and `roi_align`: torchvision has kernels of them for CPU and CUDA alone."""

from __future__ import annotations

import torch

from ..._placements import Replicate
from .._moving import distribute_tensor

_libraries: list = []       # what is registered lasts as long as these


def nms(boxes, scores, iou_threshold: float):
    """The numbers of the boxes that stay, by falling scores. Workers say which pairs overlap; this process reads that, and which of them stay is a
    chain of decisions here, as torchvision's CUDA kernel has it."""
    order = scores.argsort(descending=True, stable=True)
    sorted_boxes = boxes[order]
    first, last = sorted_boxes[:, :2], sorted_boxes[:, 2:]
    area = (last - first).prod(1)
    width, height = (torch.minimum(last[:, None], last[None]) - torch.maximum(first[:, None], first[None])).clamp(min=0).unbind(2)
    both = width * height
    overlaps = (both / (area[:, None] + area[None] - both) > iou_threshold).cpu().numpy()
    kept, is_out = [], overlaps.diagonal() & False
    for i in range(len(is_out)):
        if not is_out[i]:
            kept.append(i)
            is_out = is_out | overlaps[i]
    numbers = distribute_tensor(torch.tensor(kept, dtype=torch.int64), boxes.device_mesh, [Replicate()] * boxes.device_mesh.ndim)
    return order[numbers]


def install(module) -> None:
    """module: torchvision.ops.roi_align. Its body in Python, which torchvision compiles, runs as it is, and autograd records it."""
    if not module._has_ops():
        return
    align = module._roi_align.__wrapped__

    def roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
        return align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)

    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", nms, "PrivateUse1")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):      # the second one in inference_mode
        library.impl("roi_align", roi_align, key)
    _libraries.append(library)
