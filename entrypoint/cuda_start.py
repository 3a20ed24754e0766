"""A program that starts CUDA as torch would, and says how that went as one JSON object: without torch, in a second.

A process of its own, because a driver that is not well may hang, or leave its process unable to try again.
"""

import ctypes
import json


def main() -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(json.dumps({"error": str(error)}))
        return
    code = cuda.cuInit(0)
    if code:
        print(json.dumps({"code": code}))
        return
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        device = ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        devices.append(device)
    apart = [
        [a, b]
        for a in range(len(devices))
        for b in range(a + 1, len(devices))
        if not _reach(cuda, devices[a], devices[b])
    ]
    print(json.dumps({"code": 0, "devices": count.value, "apart": apart}))


def _reach(cuda: ctypes.CDLL, a: ctypes.c_int, b: ctypes.c_int) -> bool:
    can = ctypes.c_int()
    return not cuda.cuDeviceCanAccessPeer(ctypes.byref(can), a, b) and bool(can.value)


if __name__ == "__main__":
    main()
