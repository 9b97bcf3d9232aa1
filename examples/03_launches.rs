//! 03: launches kernels of 1 ms as fast as the device runs them. An ordinary CUDA program without any vgpu code.
//!
//!     vgpu run --sim --sm-limit 30 -- target/release/example-launches 5
//!
//! Arguments: seconds to run (default 5), microseconds per kernel (default 1000).

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::time::{Duration, Instant};

/// Launches between two synchronisations: the device always has work, and the queue stays bounded.
const LAUNCHES_PER_BATCH: u64 = 32;

fn main() -> Result<(), DriverError> {
    let mut arguments = std::env::args().skip(1).map_while(|text| text.parse().ok());
    let seconds: f64 = arguments.next().unwrap_or(5.0);
    let kernel_us: f64 = arguments.next().unwrap_or(1000.0);
    let kernel = Duration::from_secs_f64(kernel_us / 1e6);

    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(include_str!("kernels/spin.ptx")))?;
    let spin = module.load_function("vgpu_spin_ns")?;
    let nanoseconds = u64::try_from(kernel.as_nanos()).unwrap_or(u64::MAX);
    let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    println!("device: {}", context.name()?);

    let (started, mut launched) = (Instant::now(), 0u64);
    while started.elapsed().as_secs_f64() < seconds {
        for _ in 0..LAUNCHES_PER_BATCH {
            // SAFETY: the kernel has this one parameter and touches no memory.
            unsafe { stream.launch_builder(&spin).arg(&nanoseconds).launch(one) }?;
        }
        launched += LAUNCHES_PER_BATCH;
        stream.synchronize()?;
    }
    let took = started.elapsed();
    println!("kernels: {launched}");
    println!("seconds: {:.3}", took.as_secs_f64());
    println!("kernels a second: {:.1}", launched as f64 / took.as_secs_f64());
    println!("share of the device: {:.1} %", 100.0 * launched as f64 * kernel.as_secs_f64() / took.as_secs_f64());
    Ok(())
}
