"""Sharing tokens among images, literally: look at every image for every token."""


def allocate(gains, most, total, floor):
    """`gains` [images][tokens] never rise."""
    counts = [0] * len(most)
    for _ in range(total):
        open_images = [image for image in range(len(most)) if counts[image] < most[image]]
        if not open_images:
            break
        poor = [image for image in open_images if counts[image] < floor]
        if poor:
            chosen = min(poor, key=lambda image: (counts[image], image))
        else:
            chosen = min(open_images, key=lambda image: (-gains[image][counts[image]], counts[image], image))
        counts[chosen] += 1
    return counts


def best_sum(gains, most, total, floor):
    """The largest sum of gains of any sharing in which each image has `floor` tokens, by trying them all."""
    sums = {0: 0.0}  # tokens given so far -> the largest sum
    for own, upper in zip(gains, most, strict=True):
        grown = {}
        for count in range(min(floor, upper), upper + 1):
            for given, value in sums.items():
                now = given + count
                grown[now] = max(grown.get(now, 0.0), value + sum(own[:count]))
        sums = grown
    return max(value for given, value in sums.items() if given <= total)
