/* An NVML whose nvmlInit fails, as without the driver's kernel module. The text makes the doctor take it for the
   simulated one, like the CUDA library next to it. */
const char vgpu_nvml_mark[] = "VGPU_SIM_DIR";

int nvmlInit_v2(void) { return 9; }
