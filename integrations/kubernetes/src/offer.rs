//! The offer of the daemon: read from it each second, and passed on to all plugins.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};
use vgpu_control::ask_status;

use crate::slices::{Slice, slices_of};

/// Time between two questions to the daemon.
const ASK_PERIOD: Duration = Duration::from_secs(1);

/// Questions without an answer after which no container may get a slice. A daemon that is replaced answers sooner.
const MAX_SILENT_ASKS: u32 = 5;

/// Asks the daemon without end, and sends its slices whenever they change.
pub async fn follow_daemon(socket: PathBuf, slices: watch::Sender<Vec<Slice>>) {
    let (mut silent, mut told) = (0, Vec::new());
    loop {
        let asked = socket.clone();
        // The daemon's protocol blocks, for two seconds at most.
        let answer = tokio::task::spawn_blocking(move || ask_status(&asked)).await;
        match answer.map_err(std::io::Error::other).and_then(|answer| answer) {
            Ok(status) => {
                if silent > 0 {
                    info!("vgpud answers again");
                }
                silent = 0;
                let (now, problems) = slices_of(&status);
                if problems != told {
                    problems.iter().for_each(|words| warn!("{words}"));
                    told = problems;
                }
                replace_slices(&slices, now);
            }
            Err(why) => {
                silent += 1;
                if silent == 1 {
                    warn!(%why, socket = %socket.display(), "vgpud does not answer");
                }
                if silent == MAX_SILENT_ASKS {
                    let faulty = |slice: &Slice| Slice { fault: Some("vgpud does not answer".into()), ..slice.clone() };
                    let now = slices.borrow().iter().map(faulty).collect();
                    replace_slices(&slices, now);
                }
            }
        }
        sleep(ASK_PERIOD).await;
    }
}

fn replace_slices(slices: &watch::Sender<Vec<Slice>>, now: Vec<Slice>) {
    slices.send_if_modified(|before| {
        let differs = *before != now;
        *before = now;
        differs
    });
}
