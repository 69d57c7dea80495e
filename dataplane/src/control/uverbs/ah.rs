//! Address handles. The path is resolved here, once, as for a connection; a multicast group needs no neighbour.

use roceline_abi::control::Plain;

use super::abi::{CreateAh, CreateAhResp, OneHandle, QpDest};
use super::{Answer, Call, qp_attr};
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::quota::Resource;
use crate::lcore::message::Command;

/// The driver's part of the response: number and padding.
const DRIVER_RESPONSE: usize = 8;

pub fn create_ah(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    call.need_driver_out(DRIVER_RESPONSE)?;
    let request: CreateAh = call.request()?;
    let pd = context.pd(request.pd_handle)?;
    let charge = context.charge(Resource::Ahs, 1)?;
    let path = qp_attr::destination(context, &request.dest())?;
    let path = Box::new(path);
    let handle = context.handle(Command::CreateAh { pd, path })?;
    charge.keep();
    context.ahs.insert(handle);
    let response = CreateAhResp { ah_handle: handle };
    // rxe's provider puts this number, and nothing else, into each send request.
    let driver = [handle.to_ne_bytes(), [0; 4]].concat();
    Ok(call.answer(response.as_bytes(), &driver))
}

pub fn destroy_ah(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let ah = context.ah(call.request::<OneHandle>()?.handle)?;
    context.done(Command::DestroyAh { ah })?;
    context.ahs.remove(&ah);
    context.account.give(Resource::Ahs, 1);
    Ok(Answer::default())
}

impl CreateAh {
    /// Its address vector as MODIFY_QP has it.
    fn dest(&self) -> QpDest {
        QpDest {
            dgid: self.dgid,
            flow_label: self.flow_label,
            dlid: self.dlid,
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.is_global,
            port_num: self.port_num,
            ..Default::default()
        }
    }
}
