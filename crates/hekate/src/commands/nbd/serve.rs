//! `hekate nbd serve`: a block door in a process of its own.

use crate::cli::{Cli, NbdServe};
use crate::commands::doors::alone::{Alone, Opened};
use crate::commands::vdisk::own_name;
use crate::failure::Failure;
use crate::notify;
use hekate_gateway_nbd::{Door, Exports, Listen, Settings, TlsFiles};
use hekate_vdisk::{Catalogue, VolumeStore};
use std::sync::Arc;

pub fn serve(cli: &Cli, options: &NbdServe) -> Result<(), Failure> {
    notify::outcome(run(cli, options))
}

fn run(cli: &Cli, options: &NbdServe) -> Result<(), Failure> {
    let settings = settings_of(options)?;
    let alone =
        Alone { process: c"hekate-nbd", door: "block door", stopping: "closing vDisks", volume: &options.volume };
    alone.serve(cli, |_, volume| {
        let catalogue = Catalogue::open(Arc::new(VolumeStore::open(volume)?))?;
        let exports = Exports::new(catalogue, own_name(), hekate_vdisk::Settings::default());
        let door = Door::start(exports, settings.clone())?;
        Ok(Opened { addresses: door.addresses().to_vec(), stop: Box::new(|| door.stop()) })
    })
}

fn settings_of(options: &NbdServe) -> Result<Settings, Failure> {
    let listen = &options.listen;
    let tls = match (&listen.certificate, &listen.key, &listen.client_ca) {
        (Some(certificate), Some(key), Some(authority)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authority: Some(authority.clone()),
        }),
        _ if listen.listen.is_empty() || listen.plain => None,
        _ => {
            return Err(Failure::usage(
                "over TCP clients show a certificate: name --certificate, --key and --client-ca, or say --plain for an \
                 address that only trusted programs reach",
            ));
        }
    };
    let sockets = listen.sockets.iter().map(|path| Listen::Unix(path.clone()));
    let listen = sockets.chain(listen.listen.iter().map(|address| Listen::Tcp(*address))).collect();
    Ok(Settings { listen, tls, ..Settings::default() })
}
