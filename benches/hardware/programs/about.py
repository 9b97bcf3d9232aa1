"""Names of this machine's device and driver, from NVML and the driver alone. One line of JSON."""
import ctypes

from cuda import Nvml, libvgpu_mapped, tell


def main():
    nvml = Nvml()
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    nvml.must("nvmlDeviceGetName", nvml.device, name, 96)
    nvml.must("nvmlSystemGetDriverVersion", driver, 96)
    cuda = ctypes.c_int()
    code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(cuda))
    tell({"gpu": name.value.decode(), "driver": driver.value.decode(), "cuda_driver_version": cuda.value if code == 0 else None,
          "libvgpu": libvgpu_mapped()})


if __name__ == "__main__":
    main()
