//! 01: allocates device memory to the last byte, and then one byte more. An ordinary CUDA program without any
//! vgpu code.
//!
//!     vgpu run --sim --memory-limit 1GiB -- target/release/example-memory
//!
//! With the argument `hold` it keeps the memory until its standard input ends.

use cudarc::driver::{CudaContext, DriverError, result};

/// Granularity of the driver's plain allocations, bytes.
const UNIT: usize = 512;

fn main() -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    let (free, total) = context.mem_get_info()?;
    println!("device: {}", context.name()?);
    println!("total: {total}");
    println!("free: {free}");

    // Like a program that loads a model: large pieces first, then smaller ones when a large one no longer fits.
    let (mut piece, mut taken, mut pieces) = (1 << 30, 0, Vec::new());
    while piece >= UNIT {
        // SAFETY: the memory is never read; a context is current on this thread.
        match unsafe { result::malloc_sync(piece) } {
            Ok(address) => {
                taken += piece;
                pieces.push(address);
            }
            Err(_) => piece /= 2,
        }
    }
    println!("allocated: {taken}");
    println!("left: {}", free.abs_diff(taken));

    // SAFETY: as above.
    match unsafe { result::malloc_sync(1) } {
        Ok(_) => println!("one byte more: allocated"),
        Err(refused) => println!("one byte more: refused, {:?} ({})", refused.0, refused.0 as u32),
    }

    if std::env::args().nth(1).as_deref() == Some("hold") {
        // Ends when the input ends, or at once if there is none.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    }
    for address in pieces {
        // SAFETY: allocated above, freed once.
        unsafe { result::free_sync(address) }?;
    }
    println!("free again: {}", context.mem_get_info()?.0);
    Ok(())
}
