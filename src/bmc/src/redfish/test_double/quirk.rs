//! Quirks of the test double.

/// Behavior that differs from the usual behavior of controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quirk {
    /// Paths without a trailing slash are redirected, with this status.
    Slash(u16),
    /// Like `Slash(308)`, but the redirect contains an absolute URL.
    SlashAbsolute,
    /// Every request is redirected to its own URL.
    RedirectsForever,
    /// If a request for a boot override contains no boot mode, the boot mode becomes legacy.
    ModeLost,
    ModeRequired,
    ModeReadOnly,
    ModeMissing,
    /// Every change sets the boot mode to legacy, whatever mode was requested.
    ModeIgnored,
    /// `If-Match` is required. The ETag is only in the document, not in the response header.
    EtagInDocument,
    /// The ETag in the header is weak, but only the strong form of the ETag is accepted.
    EtagWeak,
    EtagDoubled,
    EtagCompressed,
    /// Every `If-Match` is rejected.
    EtagRejected,
    /// `If-Match` is required, but the controller does not provide an ETag.
    EtagUnknown,
    /// The boot override can be changed only in the settings resource.
    SettingsOnly,
    /// Like `SettingsOnly`, but a change of the system resource is accepted without effect instead of rejected.
    SettingsSilent,
    /// The settings resource does not contain the boot override.
    SettingsOther,
    /// The links to the settings resource and to the description of the reset action lead to resources that do not
    /// exist.
    DeadLinks,
    /// The reset types are listed in `@Redfish.ActionInfo` instead of the action.
    ActionInfo,
    TypesUnlisted,
    Types(&'static [&'static str]),
    /// A reset that does not fit the current power state is rejected with status 409.
    Conflict,
    /// A change becomes visible only after this number of reads.
    Lag(u32),
    /// After a change, this number of reads fail.
    Unavailable(u32),
    /// Changes are accepted without effect.
    Ignores,
    /// The time of the last reset is reported.
    ResetTime,
    /// The boot override is changed, but the controller responds with an error.
    ErrorDespiteChange,
    /// After the machine was switched off, this number of requests to switch it on is rejected.
    BusyAfterOff(u32),
    SessionOnly,
    /// Like `SessionOnly`, but the controller also offers Basic authentication.
    BasicOffered,
    /// Each page of the collection of systems has one member, except the first page, which is empty.
    Paged,
    /// A session ends after this number of requests.
    SessionExpires(u32),
    /// The controller accepts neither Basic authentication nor sessions.
    NoSession,
    PasswordChange,
    Forbidden,
    /// The boot override is reported as permanent.
    AlwaysContinuous,
    PxeMissing,
    BootMissing,
    PowerUnknown,
    /// Connections are closed after this number of milliseconds, without notice.
    Closes(u64),
}
