//! uverbs commands: what a program's rdma-core gave to `write(cmd_fd)`, decoded, carried out through the owner of
//! the context, and answered with the bytes that the kernel would have written back.
//!
//! ```text
//! plain     CmdHdr | request (starts with the response address) | driver data   in/out words of 4 bytes, headers included
//! extended  CmdHdr | ExCmdHdr | request | driver data                           words of 8 bytes, headers excluded,
//!                                                                               driver data counted apart
//! ```
//!
//! [`decode`] checks lengths as the kernel's `verify_hdr` does (Linux `drivers/infiniband/core/uverbs_main.c`);
//! after it no handler can read or write out of bounds.

pub mod abi;
mod ah;
mod cq;
mod device;
mod lid;
mod mcast;
mod mw;
mod objects;
mod qp;
mod qp_attr;
mod srq;

use std::os::fd::OwnedFd;

use roceline_abi::control::Plain;

use self::abi::{COMMAND_MASK, CmdHdr, ExCmdHdr, FLAG_EXTENDED};
use super::context::Context;
use super::error::CommandError;

/// No response of the interface is longer than this.
const MAX_RESPONSE: usize = 4096;

/// Carries a command out. `None`: the driver does not have it.
type Handler = fn(&mut Context, &Call<'_>) -> Result<Answer, CommandError>;

/// A command of the interface: sizes are the least that the kernel takes.
struct Method {
    name: &'static str,
    request: usize,
    response: usize,
    handler: Option<Handler>,
}

const fn method(
    name: &'static str,
    request: usize,
    response: usize,
    handler: Handler,
) -> Option<Method> {
    Some(Method {
        name,
        request,
        response,
        handler: Some(handler),
    })
}

const fn absent(name: &'static str) -> Option<Method> {
    Some(Method {
        name,
        request: 0,
        response: 0,
        handler: None,
    })
}

/// `enum ib_uverbs_write_cmds`, by number.
static METHODS: [Option<Method>; 41] = [
    method("GET_CONTEXT", 8, 8, device::get_context),
    method("QUERY_DEVICE", 8, 176, device::query_device),
    method("QUERY_PORT", 16, 40, device::query_port),
    method("ALLOC_PD", 8, 4, objects::alloc_pd),
    method("DEALLOC_PD", 4, 0, objects::dealloc_pd),
    method("CREATE_AH", 56, 4, ah::create_ah),
    absent("MODIFY_AH"),
    absent("QUERY_AH"),
    method("DESTROY_AH", 4, 0, ah::destroy_ah),
    method("REG_MR", 40, 12, objects::reg_mr),
    absent("REG_SMR"),
    absent("REREG_MR"),
    absent("QUERY_MR"),
    method("DEREG_MR", 4, 0, objects::dereg_mr),
    method("ALLOC_MW", 16, 8, mw::alloc_mw),
    absent("BIND_MW (the provider posts a send request instead)"),
    method("DEALLOC_MW", 4, 0, mw::dealloc_mw),
    method("CREATE_COMP_CHANNEL", 8, 4, device::create_comp_channel),
    method("CREATE_CQ", 32, 8, cq::create_cq),
    method("RESIZE_CQ", 16, 8, cq::resize_cq),
    method("DESTROY_CQ", 16, 8, cq::destroy_cq),
    absent("POLL_CQ"),
    absent("PEEK_CQ"),
    method("REQ_NOTIFY_CQ", 8, 0, cq::req_notify),
    method("CREATE_QP", 56, 32, qp::create_qp),
    method("QUERY_QP", 16, 128, qp::query_qp),
    method("MODIFY_QP", 112, 0, qp::modify_qp),
    method("DESTROY_QP", 16, 4, qp::destroy_qp),
    absent("POST_SEND (the shim rings the doorbell itself)"),
    absent("POST_RECV"),
    method("ATTACH_MCAST", 24, 0, mcast::attach_mcast),
    method("DETACH_MCAST", 24, 0, mcast::detach_mcast),
    method("CREATE_SRQ", 32, 16, srq::create_srq),
    method("MODIFY_SRQ", 24, 0, srq::modify_srq),
    method("QUERY_SRQ", 16, 16, srq::query_srq),
    method("DESTROY_SRQ", 16, 4, srq::destroy_srq),
    absent("POST_SRQ_RECV"),
    absent("OPEN_XRCD (XRC)"),
    absent("CLOSE_XRCD (XRC)"),
    method("CREATE_XSRQ", 48, 16, srq::create_xsrq),
    absent("OPEN_QP (XRC)"),
];

/// The extended commands that exist here; all others are refused in one way.
static EX_METHODS: [(u32, Method); 4] = [
    (
        1,
        Method {
            name: "EX_QUERY_DEVICE",
            request: 8,
            response: 184,
            handler: Some(device::ex_query_device),
        },
    ),
    (
        18,
        Method {
            name: "EX_CREATE_CQ",
            request: 32,
            response: 16,
            handler: Some(cq::ex_create_cq),
        },
    ),
    (
        24,
        Method {
            name: "EX_CREATE_QP",
            request: 56,
            response: 40,
            handler: Some(qp::ex_create_qp),
        },
    ),
    (
        26,
        Method {
            name: "EX_MODIFY_QP",
            request: 112,
            response: 8,
            handler: Some(qp::ex_modify_qp),
        },
    ),
];

/// What goes back to the program.
#[derive(Debug, Default)]
pub struct Answer {
    /// Bytes of the response.
    pub payload: Vec<u8>,
    /// A descriptor for the program, whose number belongs at the start of the response.
    pub fd: Option<OwnedFd>,
}

/// A command with verified lengths.
#[derive(Debug)]
pub struct Call<'a> {
    /// Its name, for messages.
    pub name: &'static str,
    request: &'a [u8],
    core_out: usize,
    driver_out: usize,
    extended: bool,
}

impl Call<'_> {
    /// The request as a `T`. An extended request may be shorter than this version's struct (the rest is zero)
    /// or longer (what is beyond must be zero: a feature we do not know).
    pub fn request<T: Plain>(&self) -> Result<T, CommandError> {
        let size = size_of::<T>();
        if !self.extended || self.request.len() == size {
            return T::from_bytes(self.request).ok_or(CommandError::Space {
                command: self.name,
                what: "request",
                got: self.request.len(),
                need: size,
            });
        }
        if self.request.iter().skip(size).any(|b| *b != 0) {
            return Err(CommandError::Unsupported("an extension of this command"));
        }
        let mut bytes = vec![0; size];
        let n = size.min(self.request.len());
        bytes[..n].copy_from_slice(&self.request[..n]);
        T::from_bytes(&bytes).ok_or(CommandError::Framing {
            command: self.name,
            bytes: n,
        })
    }

    /// Refuses a call whose response has no room for the driver's part.
    pub fn need_driver_out(&self, need: usize) -> Result<(), CommandError> {
        if self.driver_out < need {
            let (command, got) = (self.name, self.driver_out);
            return Err(CommandError::Field {
                command,
                field: "driver response length",
                value: got as u64,
            });
        }
        Ok(())
    }

    /// Bytes of the core response that the program has room for.
    pub fn core_out(&self) -> usize {
        self.core_out
    }

    /// A response of these bytes, cut to what the program has room for.
    pub fn answer(&self, core: &[u8], driver: &[u8]) -> Answer {
        let mut payload = core[..core.len().min(self.core_out)].to_vec();
        if !driver.is_empty() {
            payload.resize(self.core_out, 0);
            payload.extend_from_slice(&driver[..driver.len().min(self.driver_out)]);
        }
        Answer { payload, fd: None }
    }
}

/// Carries out one command.
pub fn execute(context: &mut Context, bytes: &[u8]) -> Result<Answer, CommandError> {
    let (handler, call) = decode(bytes)?;
    handler(context, &call)
}

/// The method that a command's number names.
fn method_of(command: u32) -> Option<&'static Method> {
    let number = command & COMMAND_MASK;
    if command & FLAG_EXTENDED == 0 {
        METHODS.get(number as usize).and_then(Option::as_ref)
    } else {
        EX_METHODS
            .iter()
            .find(|(n, _)| *n == number)
            .map(|(_, method)| method)
    }
}

/// The name of a command, for messages.
pub fn name(bytes: &[u8]) -> &'static str {
    let method = CmdHdr::from_bytes(bytes).and_then(|hdr| method_of(hdr.command));
    method.map_or("unknown", |method| method.name)
}

fn decode(bytes: &[u8]) -> Result<(Handler, Call<'_>), CommandError> {
    const HDR: usize = size_of::<CmdHdr>();
    const EX_HDR: usize = size_of::<ExCmdHdr>();
    let framing = |command| CommandError::Framing {
        command,
        bytes: bytes.len(),
    };
    let space = |command, what, got, need| CommandError::Space {
        command,
        what,
        got,
        need,
    };
    let hdr = CmdHdr::from_bytes(bytes).ok_or(framing("command"))?;
    let number = hdr.command & COMMAND_MASK;
    if hdr.command & !(COMMAND_MASK | FLAG_EXTENDED) != 0 {
        return Err(CommandError::UnknownCommand(hdr.command));
    }
    if hdr.command & FLAG_EXTENDED == 0 {
        let method = method_of(hdr.command).ok_or(CommandError::UnknownCommand(hdr.command))?;
        let handler = method
            .handler
            .ok_or(CommandError::Unsupported(method.name))?;
        if usize::from(hdr.in_words) * 4 != bytes.len() {
            return Err(framing(method.name));
        }
        let (request, out) = (&bytes[HDR..], usize::from(hdr.out_words) * 4);
        if request.len() < method.request {
            return Err(space(method.name, "request", request.len(), method.request));
        }
        if out < method.response {
            return Err(space(method.name, "response", out, method.response));
        }
        let call = Call {
            name: method.name,
            request,
            core_out: method.response,
            driver_out: (out - method.response).min(MAX_RESPONSE),
            extended: false,
        };
        return Ok((handler, call));
    }

    let method = method_of(hdr.command).ok_or(CommandError::UnknownExtended(number))?;
    let handler = method
        .handler
        .ok_or(CommandError::Unsupported(method.name))?;
    let ex = ExCmdHdr::from_bytes(&bytes[HDR..]).ok_or(framing(method.name))?;
    let body = &bytes[HDR + EX_HDR..];
    let request = usize::from(hdr.in_words) * 8;
    if request + usize::from(ex.provider_in_words) * 8 != body.len() || ex.reserved != 0 {
        return Err(framing(method.name));
    }
    let core_out = usize::from(hdr.out_words) * 8;
    let driver_out = usize::from(ex.provider_out_words) * 8;
    if (ex.response == 0) != (core_out + driver_out == 0) || core_out > MAX_RESPONSE {
        return Err(framing(method.name));
    }
    if request < method.request {
        return Err(space(method.name, "request", request, method.request));
    }
    if ex.response != 0 && core_out < method.response {
        return Err(space(method.name, "response", core_out, method.response));
    }
    let call = Call {
        name: method.name,
        request: &body[..request],
        core_out,
        driver_out: driver_out.min(MAX_RESPONSE),
        extended: true,
    };
    Ok((handler, call))
}

#[cfg(test)]
mod tests;
