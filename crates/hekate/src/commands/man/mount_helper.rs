//! mount.hekate(8): the mount helper, and the options of `-o` from the table that parses them.

use super::{ADMINISTRATION, Page, tagged, title};
use crate::cli::mount_options;
use crate::failure::Failure;
use clap::Command;
use clap_mangen::roff::{Roff, bold, italic, roman};

const NAME: &str = "mount.hekate";

const SOURCES: &[(&str, &str)] = &[
    ("VOLUME", "A volume of the server of this machine, or of the server of the option server=."),
    (
        "ADDRESS:PORT/VOLUME",
        "A volume of the server at that address, over TCP with TLS. The option credential= names the client's credential; \
         a server of the cluster needs none.",
    ),
    ("unix:PATH/VOLUME", "A volume of the server at that socket."),
];

const FSTAB: &[&str] = &[
    "photos                          /mnt/photos  hekate  _netdev,nofail,x-systemd.after=hekate.service  0 0",
    "10.0.0.1:7100/photos            /mnt/b       hekate  _netdev,nofail,credential=/etc/web1.hekate     0 0",
    "unix:/run/hekate/server.sock/p  /home/p      hekate  noauto,user,exec                               0 0",
];

pub fn page(root: &Command) -> Result<Page, Failure> {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman(format!("{NAME} - mount a volume of Hekate"))]);
    synopsis(&mut roff);
    roff.control("SH", ["DESCRIPTION"]).text([roman(
        "mount(8) runs this program for file systems of type hekate, and for lines of /etc/fstab with that type. It mounts \
         the volume through FUSE and starts a background process that serves the mount until it is unmounted.",
    )]);
    roff.control("SH", ["SOURCE"]);
    tagged(&mut roff, SOURCES.iter().map(|(form, server)| (form.to_string(), server.to_string())));
    roff.control("SH", ["OPTIONS"]).text([roman("Later options win; an option that is not listed here is refused.")]);
    tagged(&mut roff, mount_options().into_iter().map(|(option, does)| (option, format!("{does}."))));
    switches(root, &mut roff);
    roff.control("SH", ["FSTAB"]).control("nf", []);
    for line in FSTAB {
        roff.text([roman(*line)]);
    }
    roff.control("fi", []).control("PP", []).text([roman(
        "With _netdev the mount waits for its server and belongs to remote-fs.target; with x-systemd.after=hekate.service it \
         begins after the server of this machine and ends before it. With x-systemd.requires= in its place, each restart \
         of the server would unmount it.",
    )]);
    roff.control("SH", ["EXIT STATUS"]).text([roman("0 mounted; 1 wrong use, or not permitted; 32 the mount failed.")]);
    roff.control("SH", ["SEE ALSO"])
        .text([roman("hekate-mount(1), hekate-umount(1), mount(8), fstab(5), systemd.mount(5)")]);
    let mut text = title(NAME, ADMINISTRATION);
    text.extend(roff.render().into_bytes());
    Ok(Page { name: NAME.into(), section: ADMINISTRATION, text })
}

fn synopsis(roff: &mut Roff) {
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("mount -t hekate"), roman(" [-o "), italic("OPTIONS"), roman("] "), italic("SOURCE DIRECTORY")]);
    roff.control("br", []);
    roff.text([
        bold(NAME),
        roman(" "),
        italic("SOURCE DIRECTORY"),
        roman(" [-sfnv] [-N "),
        italic("NAMESPACE"),
        roman("] [-o "),
        italic("OPTIONS"),
        roman("] [-t "),
        italic("TYPE"),
        roman("]"),
    ]);
}

/// The arguments that mount(8) passes to a helper.
fn switches(root: &Command, roff: &mut Roff) {
    let Some(helper) = root.find_subcommand("mount-helper") else { return };
    roff.control("SH", ["SWITCHES"]);
    let rows = helper.get_arguments().filter_map(|argument| {
        let letter = argument.get_short().filter(|_| argument.get_long().is_none())?;
        Some((format!("-{letter}"), format!("{}.", argument.get_help()?)))
    });
    tagged(roff, rows);
}
