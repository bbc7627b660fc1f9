//! Quirks of the test double.

/// Deviation of a controller from the common case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quirk {
    /// Paths without a trailing slash are redirected with this status.
    Slash(u16),
    /// As `Slash(308)`, with the controller's whole address.
    SlashAbsolute,
    /// Every request is redirected to itself.
    RedirectsForever,
    /// A boot override without a mode becomes a legacy boot.
    ModeLost,
    ModeRequired,
    ModeReadOnly,
    ModeMissing,
    /// The boot mode is legacy although it was requested otherwise.
    ModeIgnored,
    /// `If-Match` is required. The ETag is only in the document.
    EtagInDocument,
    /// The ETag in the header is weak; only its strong form is accepted.
    EtagWeak,
    EtagDoubled,
    EtagCompressed,
    /// Every `If-Match` is rejected.
    EtagRejected,
    /// `If-Match` is required, but there is no ETag.
    EtagUnknown,
    /// The boot override can be changed only in the settings resource.
    SettingsOnly,
    /// As `SettingsOnly`, but a change of the system is accepted without effect.
    SettingsSilent,
    /// The settings resource does not contain the boot override.
    SettingsOther,
    /// The settings resource and the description of the reset action are linked, and do not exist.
    DeadLinks,
    /// The reset types are listed by `@Redfish.ActionInfo`.
    ActionInfo,
    TypesUnlisted,
    Types(&'static [&'static str]),
    /// A reset to the present state is a conflict.
    Conflict,
    /// A change is reported after this number of reads.
    Lag(u32),
    /// The system cannot be read this many times after a change.
    Unavailable(u32),
    /// Changes are accepted without effect.
    Ignores,
    /// The boot override is changed, and the request answered with an error.
    ErrorDespiteChange,
    /// After the machine was switched off, it cannot be switched on this many times.
    BusyAfterOff(u32),
    SessionOnly,
    /// A session ends after this number of requests.
    SessionExpires(u32),
    /// Neither Basic authentication nor a session is possible.
    NoSession,
    PasswordChange,
    Forbidden,
    /// The override is reported as permanent.
    AlwaysContinuous,
    PxeMissing,
    BootMissing,
    PowerUnknown,
    /// Connections are closed after this number of milliseconds, without notice.
    Closes(u64),
}
