//! Tests of time: engines that work at the same time, kernels that wait, cooperative launches, per-thread default
//! streams, the cost of calls. Streams and events: `streams.rs` of vgpu-sim; slices between processes: its
//! `processes.rs`.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;
mod graph_parts;

use common::on_machine;
use graph_parts::{MIB, alloc, event, instantiate, read, ready, stream, wait};
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PTX: &CStr = c".version 7.0\n.target sm_50\n.address_size 64\n\
    .visible .entry vgpu_spin_ns(.param .u64 ns) { ret; }\n\
    .visible .entry vgpu_wait_word(.param .u64 at, .param .u32 value) { ret; }\n\
    .visible .entry vgpu_set_word(.param .u64 at, .param .u32 value, .param .u64 ns) { ret; }\n";

const MS: u64 = 1_000_000;

struct Kernels {
    spin: CUfunction,
    wait: CUfunction,
    set: CUfunction,
}

fn kernels(l: &Library) -> Kernels {
    let mut m = CUmodule::NULL;
    ok!(l, cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
    let get = |name: &CStr| {
        let mut f = CUfunction::NULL;
        ok!(l, cuModuleGetFunction(&mut f, m, name.as_ptr()));
        f
    };
    Kernels { spin: get(c"vgpu_spin_ns"), wait: get(c"vgpu_wait_word"), set: get(c"vgpu_set_word") }
}

/// Launches one thread with up to three arguments of 64 bits; a kernel reads only the parameters it declares.
fn launch(l: &Library, f: CUfunction, s: CUstream, mut values: [u64; 3]) -> CUresult {
    let mut params = values.each_mut().map(|v| std::ptr::from_mut(v).cast::<c_void>());
    cu!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params.as_mut_ptr(), null_mut()))
}

fn word(l: &Library) -> CUdeviceptr {
    let at = alloc(l, 4);
    ok!(l, cuMemsetD32_v2(at, 0, 1));
    ok!(l, cuCtxSynchronize());
    at
}

fn busy(dir: &Path) -> u64 {
    vgpu_sim::truth::read(dir).unwrap().living_process(0, std::process::id()).unwrap().busy_ns
}

fn elapsed(l: &Library, a: CUevent, b: CUevent) -> f32 {
    let mut ms = 0.0;
    ok!(l, cuEventElapsedTime(&mut ms, a, b));
    ms
}

#[test]
fn a_kernel_that_waits_for_a_later_kernel_of_another_stream_ends_with_it() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (k, s, t, at) = (kernels(l), stream(l), stream(l), word(l));
        for round in 1..=100 {
            assert_eq!(launch(l, k.wait, s, [at, round, 0]).0, 0);
            assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
            assert_eq!(launch(l, k.set, t, [at, round, 20_000]).0, 0);
            ok!(l, cuStreamSynchronize(s));
            assert_eq!(read(l, at, 4), u32::try_from(round).unwrap().to_le_bytes());
        }
    });
}

#[test]
fn a_waiting_kernel_keeps_the_device_busy_and_is_ended_by_the_host() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (k, s, t) = (kernels(l), stream(l), stream(l));
        let mut host = null_mut();
        ok!(l, cuMemHostAlloc(&mut host, 4096, 2));
        // SAFETY: the driver's own page, zeroed, which this test keeps.
        let flag = unsafe { std::sync::atomic::AtomicU32::from_ptr(host.cast()) };
        let before = busy(dir);
        assert_eq!(launch(l, k.wait, s, [host as u64, 1, 0]).0, 0);
        assert_eq!(launch(l, k.spin, s, [MS, 0, 0]).0, 0, "behind it");
        assert_eq!(launch(l, k.spin, t, [10 * MS, 0, 0]).0, 0, "beside it");
        ok!(l, cuStreamSynchronize(t));
        let begun = Instant::now();
        while busy(dir) - before < 60 * MS {
            assert!(begun.elapsed() < Duration::from_secs(20), "it keeps the device, whoever looks");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        flag.store(1, Ordering::Release);
        ok!(l, cuStreamSynchronize(s));
        let after = busy(dir);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(busy(dir), after, "it is gone");
    });
}

#[test]
fn a_waiting_kernel_ends_with_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let machine = [("VGPU_SIM_DIR", dir.path().to_str().unwrap()), ("VGPU_SIM_PROFILE", "t4")];
    common::in_child(&machine, |l| {
        ready(l);
        let k = kernels(l);
        assert_eq!(launch(l, k.wait, stream(l), [word(l), 1, 0]).0, 0);
        // On a busy host the kernel may begin late.
        let begun = std::time::Instant::now();
        while busy(dir.path()) <= 10 * MS {
            assert!(begun.elapsed() < Duration::from_secs(30), "the kernel does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        Vec::new()
    });
    let total = || vgpu_sim::truth::read(dir.path()).unwrap().devices[0].busy_ns;
    let one = total();
    assert!(one > 10 * MS);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(total(), one);
}

#[test]
fn kernels_that_wait_and_set_work_in_graphs_too() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (k, s, t, at) = (kernels(l), stream(l), stream(l), word(l));
        ok!(l, cuStreamBeginCapture_v2(s, 0));
        assert_eq!(launch(l, k.wait, s, [at, 5, 0]).0, 0);
        let mut g = CUgraph::NULL;
        ok!(l, cuStreamEndCapture(s, &mut g));
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, s));
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        assert_eq!(launch(l, k.set, t, [at, 5, 1000]).0, 0);
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(launch(l, k.wait, s, [0, 5, 0]), CUresult::ILLEGAL_ADDRESS);
    });
}

/// Host memory is copied to the device while a kernel works, and back while another does.
#[test]
fn copies_overlap_with_kernels_and_with_each_other() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let k = kernels(l);
        let (s, t, u, gate) = (stream(l), stream(l), stream(l), stream(l));
        let [begin, a, b, c, go] = [(); 5].map(|()| event(l));
        let (p, q) = (alloc(l, 240 * MIB), alloc(l, 240 * MIB));
        let (mut from, mut to) = (vec![1u8; 240 * MIB], vec![0u8; 240 * MIB]);
        // All work first waits for a host function, so that the host's own time is not in between.
        let mut open = AtomicU64::new(0);
        ok!(l, cuLaunchHostFunc(gate, Some(wait), open.as_ptr().cast()));
        ok!(l, cuEventRecord(go, gate));
        ok!(l, cuEventRecord(begin, gate));
        for x in [s, t, u] {
            ok!(l, cuStreamWaitEvent(x, go, 0));
        }
        ok!(l, cuMemcpyHtoDAsync_v2(p, from.as_mut_ptr().cast(), from.len(), s));
        ok!(l, cuEventRecord(a, s));
        assert_eq!(launch(l, k.spin, t, [20 * MS, 0, 0]).0, 0);
        ok!(l, cuEventRecord(b, t));
        ok!(l, cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), q, to.len(), u));
        ok!(l, cuEventRecord(c, u));
        open.get_mut();
        open.store(1, Ordering::Release);
        ok!(l, cuCtxSynchronize());
        // 240 MiB at 12 GB/s take 21 ms; one after another the three would take more than 60 ms.
        let times = [a, b, c].map(|e| elapsed(l, begin, e));
        assert!(times.iter().all(|ms| (19.9..22.0).contains(ms)), "{times:?}");
    });
}

/// CUDA driver API, `cuLaunchCooperativeKernel`: at most as many blocks as can be resident at the same time, else
/// 720.
#[test]
fn a_cooperative_grid_fits_the_device_at_once_or_is_refused() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let k = kernels(l);
        let coop = |blocks: u32, threads: u32, shared: u32| {
            let mut ns = 1u64;
            let mut params = [(&raw mut ns).cast::<c_void>()];
            let s = CUstream::NULL;
            cu!(l, cuLaunchCooperativeKernel(k.spin, blocks, 1, 1, threads, 1, 1, shared, s, params.as_mut_ptr()))
        };
        // 40 multiprocessors with 1024 threads, 16 blocks and 64 KiB each.
        assert_eq!((coop(40, 1024, 0).0, coop(41, 1024, 0).0), (0, 720));
        assert_eq!((coop(640, 32, 0).0, coop(641, 32, 0).0), (0, 720));
        assert_eq!((coop(80, 32, 32 << 10).0, coop(81, 32, 32 << 10).0), (0, 720));
    });
}

fn params(f: CUfunction, s: CUstream, grid: u32, args: *mut *mut c_void) -> CUDA_LAUNCH_PARAMS {
    CUDA_LAUNCH_PARAMS {
        function: f,
        gridDimX: grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: s,
        kernelParams: args,
    }
}

/// CUDA driver API, `cuLaunchCooperativeKernelMultiDevice`: one kernel and shape, one device and stream per
/// launch. All launches wait for each other, before and after, unless the flags exclude it.
#[test]
fn grids_on_several_devices_begin_and_end_together() {
    on_machine("2xt4,l4", &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")], |l, _| {
        let each: Vec<(CUcontext, Kernels, CUstream)> = (0..3)
            .map(|dev| {
                let mut c = CUcontext::NULL;
                ok!(l, cuInit(0));
                ok!(l, cuDevicePrimaryCtxRetain(&mut c, dev));
                ok!(l, cuCtxSetCurrent(c));
                (c, kernels(l), stream(l))
            })
            .collect();
        let mut ns = 5 * MS;
        let mut args = [(&raw mut ns).cast::<c_void>()];
        let args = args.as_mut_ptr();
        let one = |dev: usize, grid| params(each[dev].1.spin, each[dev].2, grid, args);
        let go = |list: &[CUDA_LAUNCH_PARAMS], flags| {
            let mut list = list.to_vec();
            let n = u32::try_from(list.len()).unwrap();
            cu!(l, cuLaunchCooperativeKernelMultiDevice(list.as_mut_ptr(), n, flags))
        };
        let invalid = CUresult::INVALID_VALUE;
        assert_eq!(go(&[], 0), invalid);
        assert_eq!(go(&[one(0, 1), one(0, 1)], 0), invalid, "one device twice");
        assert_eq!(go(&[one(0, 1), one(1, 2)], 0), invalid, "two shapes");
        assert_eq!(go(&[one(0, 1), one(2, 1)], 0), invalid, "two kinds of device");
        assert_eq!(go(&[params(each[0].1.spin, CUstream::NULL, 1, args)], 0), invalid, "a default stream");
        let other = CUDA_LAUNCH_PARAMS { function: each[1].1.wait, ..one(1, 1) };
        assert_eq!(go(&[one(0, 1), other], 0), invalid, "two kernels");
        assert_eq!(go(&[one(0, 1), one(1, 1)], 4), invalid);
        assert_eq!(go(&[one(0, 641), one(1, 641)], 0), CUresult(720));
        for (flags, waits) in [(0, true), (3, false)] {
            let open = AtomicU64::new(0);
            // The first device has work to wait for.
            ok!(l, cuLaunchHostFunc(each[0].2, Some(wait), open.as_ptr().cast()));
            assert_eq!(go(&[one(0, 1), one(1, 1)], flags).0, 0);
            if !waits {
                ok!(l, cuStreamSynchronize(each[1].2));
            }
            let done = cu!(l, cuStreamQuery(each[1].2));
            assert_eq!(done, if waits { CUresult::NOT_READY } else { CUresult::SUCCESS }, "flags {flags}");
            open.store(1, Ordering::Release);
            for (_, _, s) in &each[..2] {
                ok!(l, cuStreamSynchronize(*s));
            }
        }
    });
}

#[test]
fn the_default_streams_of_two_threads_do_not_wait_for_each_other() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let (k, at) = (kernels(l), word(l));
        assert_eq!(launch(l, k.wait, CU_STREAM_PER_THREAD, [at, 1, 0]).0, 0);
        struct Shared<'a>(&'a Library, CUcontext, CUfunction, CUfunction, u64);
        // SAFETY: handles of a driver that all threads may use.
        unsafe impl Send for Shared<'_> {}
        let both = Shared(l, ctx, k.spin, k.set, at);
        std::thread::scope(|scope| {
            let run = move || {
                let Shared(l, ctx, spin, set, at) = { both };
                ok!(l, cuCtxSetCurrent(ctx));
                assert_eq!(launch(l, spin, CU_STREAM_PER_THREAD, [MS, 0, 0]).0, 0);
                ok!(l, cuStreamSynchronize(CU_STREAM_PER_THREAD));
                assert_eq!(launch(l, set, CU_STREAM_PER_THREAD, [at, 1, 0]).0, 0);
            };
            assert_eq!(cu!(l, cuStreamQuery(CU_STREAM_PER_THREAD)), CUresult::NOT_READY);
            scope.spawn(run).join().unwrap();
        });
        ok!(l, cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
}

#[test]
fn calls_take_the_host_time_that_the_profile_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        r#"{"launch_host_ns": 300000, "record_host_ns": 200000, "query_host_ns": 100000, "queue_depth": 4}"#,
    )
    .unwrap();
    on_machine(&format!("t4@{}", file.path().display()), &[], |l, _| {
        ready(l);
        let (k, s, e) = (kernels(l), stream(l), event(l));
        let least = |us: u64, what: &dyn Fn()| {
            let begun = Instant::now();
            (0..10).for_each(|_| what());
            // A call may take 15 % less than usual.
            assert!(begun.elapsed() >= Duration::from_micros(8 * us), "{:?}", begun.elapsed());
        };
        least(300, &|| assert_eq!(launch(l, k.spin, s, [1, 0, 0]).0, 0));
        least(200, &|| ok!(l, cuEventRecord(e, s)));
        least(100, &|| _ = cu!(l, cuEventQuery(e)));
        least(100, &|| _ = cu!(l, cuStreamQuery(s)));
        // Four launches fit into the queue; the next waits for the first.
        ok!(l, cuStreamSynchronize(s));
        let begun = Instant::now();
        for _ in 0..6 {
            assert_eq!(launch(l, k.spin, s, [30 * MS, 0, 0]).0, 0);
        }
        assert!(begun.elapsed() >= Duration::from_millis(55), "two of them had to end first: {:?}", begun.elapsed());
    });
}
