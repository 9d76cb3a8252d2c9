// Programs that the tests run in sandboxes.

/**
 * Draws a bar chart: with matplotlib where the image has it, else by hand, as a value that has a picture.
 */
export const chart = `
heights = [3, 1, 4, 1, 5, 9, 2, 6]
try:
    import matplotlib.pyplot as plt
except ImportError:
    import struct, zlib
    class Chart:
        def _repr_png_(self):
            width, height = 16 * len(heights), 100
            rows = b"".join(b"\\0" + b"".join(b"\\x20\\x60\\xc0" if height - y <= 10 * heights[x // 16] and x % 16 < 12 else b"\\xff\\xff\\xff" for x in range(width)) for y in range(height))
            def chunk(kind, data):
                return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        def __repr__(self):
            return "<Chart>"
    shown = Chart()
else:
    shown = plt.bar(range(len(heights)), heights)
shown
`;

/** The bytes of the picture that chart has drawn, as an expression in the same interpreter. */
export const savedChart = `(shown._repr_png_() if hasattr(shown, "_repr_png_") else (lambda file: (plt.savefig(file, format="png"), file.getvalue())[1])(__import__("io").BytesIO()))`;
