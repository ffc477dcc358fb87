//! The one table of what the controller can do. It drives dispatch, the bits of Identify Controller and the Commands
//! Supported and Effects log, so that the three cannot disagree.

use nvme::{
    AdminOpcode, NvmOpcode, SubmissionQueueEntry,
    identify::{oacs, oncs},
    logs::effects,
};

use crate::{
    admin::{self, Reply},
    config::DoorbellCommand,
    controller::Controller,
    engine::Engine,
    io::{self, Permits, Refused, Started},
};

/// Carries out an admin command.
pub(crate) type AdminHandler = fn(&mut Controller, &SubmissionQueueEntry) -> Reply;

/// Carries out an I/O command.
#[derive(Clone, Copy)]
pub(crate) struct IoHandler(
    pub(crate) fn(&mut Engine, u16, &SubmissionQueueEntry, &mut Permits) -> Result<Started, Refused>,
);

/// An admin command that the controller knows.
pub(crate) struct AdminCommand {
    opcode: AdminOpcode,
    effects: u32,
    /// Its bit in OACS, for an optional command.
    oacs: u16,
    handler: AdminHandler,
}

/// An I/O command that the controller knows.
struct IoCommand {
    opcode: NvmOpcode,
    effects: u32,
    /// Its bit in ONCS, for an optional command.
    oncs: u16,
    handler: IoHandler,
}

const fn admin(opcode: AdminOpcode, oacs: u16, handler: AdminHandler) -> AdminCommand {
    AdminCommand { opcode, effects: effects::SUPPORTED | effects::SCOPE_CONTROLLER, oacs, handler }
}

static ADMIN: &[AdminCommand] = &[
    admin(AdminOpcode::DELETE_SQ, 0, admin::queues::delete_sq),
    admin(AdminOpcode::CREATE_SQ, 0, admin::queues::create_sq),
    admin(AdminOpcode::GET_LOG_PAGE, 0, admin::logs::get_log_page),
    admin(AdminOpcode::DELETE_CQ, 0, admin::queues::delete_cq),
    admin(AdminOpcode::CREATE_CQ, 0, admin::queues::create_cq),
    admin(AdminOpcode::IDENTIFY, 0, admin::identify::identify),
    admin(AdminOpcode::ABORT, 0, admin::events::abort),
    admin(AdminOpcode::SET_FEATURES, 0, admin::features::set),
    admin(AdminOpcode::GET_FEATURES, 0, admin::features::get),
    admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, admin::events::request),
    admin(AdminOpcode::DOORBELL_BUFFER_CONFIG, oacs::DOORBELL_BUFFER_CONFIG, admin::queues::doorbell_buffer_config),
    admin(AdminOpcode::GOOGLE_DOORBELL_BUFFER_CONFIG, 0, admin::queues::vendor_doorbell_buffer_config),
];

const fn nvm(opcode: NvmOpcode, extra: u32, oncs: u16, handler: IoHandler) -> IoCommand {
    IoCommand { opcode, effects: effects::SUPPORTED | effects::SCOPE_NAMESPACE | extra, oncs, handler }
}

static NVM: &[IoCommand] = &[
    // The search goes from the front: reads and writes are what a disk does all day.
    nvm(NvmOpcode::READ, 0, 0, IoHandler(io::read)),
    nvm(NvmOpcode::WRITE, effects::BLOCK_CONTENT_CHANGE, 0, IoHandler(io::write)),
    nvm(NvmOpcode::FLUSH, 0, 0, IoHandler(io::flush)),
    nvm(NvmOpcode::WRITE_ZEROES, effects::BLOCK_CONTENT_CHANGE, oncs::WRITE_ZEROES, IoHandler(io::write_zeroes)),
    nvm(
        NvmOpcode::DATASET_MANAGEMENT,
        effects::BLOCK_CONTENT_CHANGE,
        oncs::DATASET_MANAGEMENT,
        IoHandler(io::dataset_management),
    ),
];

/// What a controller offers of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// The form of Doorbell Buffer Config, if there is one.
    pub(crate) doorbells: Option<DoorbellCommand>,
}

impl Offer {
    fn offers(self, command: &AdminCommand) -> bool {
        match command.opcode {
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.doorbells == Some(DoorbellCommand::Standard),
            AdminOpcode::GOOGLE_DOORBELL_BUFFER_CONFIG => self.doorbells == Some(DoorbellCommand::Vendor),
            _ => true,
        }
    }

    /// The handler of an admin command.
    pub(crate) fn admin(self, opcode: AdminOpcode) -> Option<AdminHandler> {
        ADMIN.iter().find(|c| c.opcode == opcode && self.offers(c)).map(|c| c.handler)
    }

    /// Optional Admin Command Support.
    pub(crate) fn oacs(self) -> u16 {
        ADMIN.iter().filter(|c| self.offers(c)).fold(0, |bits, c| bits | c.oacs)
    }

    /// Optional NVM Command Support.
    pub(crate) fn oncs(self) -> u16 {
        NVM.iter().fold(oncs::FEATURE_SAVE_SELECT, |bits, c| bits | c.oncs)
    }

    /// Opcodes and effects of the admin set.
    pub(crate) fn admin_effects(self) -> impl Iterator<Item = (u8, u32)> {
        ADMIN.iter().filter(move |c| self.offers(c)).map(|c| (c.opcode.0, c.effects))
    }

    /// Opcodes and effects of the NVM set.
    pub(crate) fn nvm_effects(self) -> impl Iterator<Item = (u8, u32)> {
        NVM.iter().map(|c| (c.opcode.0, c.effects))
    }
}

/// The handler of an I/O command.
#[inline]
pub(crate) fn io(opcode: NvmOpcode) -> Option<IoHandler> {
    NVM.iter().find(|c| c.opcode == opcode).map(|c| c.handler)
}
