"""An independent reader of safetensors, from the format's description: read_safetensors.py FILE

Prints the metadata, then one line a tensor in file order: name, type, shape, bytes in hex. Fails
on any offence.
"""
import json
import struct
import sys

data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header_text = data[8 : 8 + length].decode("utf-8")
assert length % 8 == 0 and header_text.startswith("{") and header_text.rstrip(" ").endswith("}")
header = json.loads(header_text)
print(json.dumps(header.pop("__metadata__", {}), sort_keys=True))
width = dict.fromkeys(["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"], 1)
width |= dict.fromkeys(["I16", "U16", "F16", "BF16"], 2)
width |= dict.fromkeys(["I32", "U32", "F32"], 4) | dict.fromkeys(["I64", "U64", "F64", "C64"], 8)
end = 0
for name, entry in sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0])):
    begin, size = entry["data_offsets"][0], width[entry["dtype"]]
    assert begin == end and begin % size == 0, name
    for dim in entry["shape"]:
        size *= dim
    end = begin + size
    assert entry["data_offsets"][1] == end, name
    print(name, entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end].hex())
assert 8 + length + end == len(data)
