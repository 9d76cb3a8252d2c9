// Programs that the tests run in sandboxes.

const drawn = `
import struct, zlib
heights = [3, 1, 4, 1, 5, 9, 2, 6]
class Chart:
    def _repr_png_(self):
        width, height = 16 * len(heights), 100
        rows = b"".join(b"\\0" + b"".join(b"\\x20\\x60\\xc0" if height - y <= 10 * heights[x // 16] and x % 16 < 12 else b"\\xff\\xff\\xff" for x in range(width)) for y in range(height))
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
`;

/** Draws a bar chart by hand: the program's value has a picture, as values of many libraries have. */
export const picture = `${drawn}\nChart()`;

/** Draws a bar chart with matplotlib, whose figures become pictures by themselves; by hand where the image does not have it. */
export const chart = `${drawn}
try:
    import matplotlib.pyplot as plt
except ImportError:
    shown = Chart()
else:
    shown = plt.bar(range(len(heights)), heights)
shown`;

/** Draws to a file. */
export const pictureFile = (path) => `${drawn}\nopen("${path}", "wb").write(Chart()._repr_png_())`;
