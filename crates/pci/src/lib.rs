//! A PCI function as a VMM sees it.
//!
//! [`PciFunction`] is the border: on one side a device model, on the other a vfio-user server or any VMM that embeds the
//! device. The border knows configuration space, BARs, interrupts, guest memory and polling, and no protocol.

//!
//! [`ConfigSpace`] and [`MsixTable`] are the parts of a function that any device needs: registers with a write mask for each
//! bit, and the storage behind an MSI-X BAR. [`Pacer`] decides for whoever polls functions when to stop and sleep.
//!
//! # Not done
//! - Plain MSI, I/O BARs, expansion ROMs, extended capabilities.
//! - State export for migration.

#![forbid(unsafe_code)]

mod capabilities;
mod config;
mod function;
mod interrupt;
mod msix_table;
mod pacer;

pub use config::{
    CONFIG_SPACE_SIZE, ConfigError, ConfigEvents, ConfigSpace, ConfigSpaceBuilder, MsixLayout, PowerState,
};
pub use function::{Bar, MappableArea, PciFunction, Wait};
pub use interrupt::{Interrupt, Interrupts};
pub use msix_table::{MsixEntry, MsixTable};
pub use pacer::{Pace, Pacer, PollMode};
