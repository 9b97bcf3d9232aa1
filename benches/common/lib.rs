//! Parts that every measuring tool uses: the host, the build under test, the files of a report and its pictures.
//!
//! - [`host`]: processor time of processes, and the machine that a report names
//! - [`build`]: paths of the libraries, and scratch space
//! - [`output`]: report.md, and for each picture an SVG and the CSV that it is drawn from
//! - [`plot`]: pictures of shares and errors, and the elements of any picture
//!
//! Not here: the measurements and the texts of reports.

pub mod build;
pub mod host;
pub mod output;
pub mod plot;
