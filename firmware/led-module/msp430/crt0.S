; Reset, interrupt vectors, and the frames of the interrupt handlers.
;
; A handler must clear CPUOFF in the saved status register, or the main loop sleeps on after the interrupt. C has no
; access to the saved register, so the frames are assembler.

        .equ    CPUOFF, 0x10

        .section .text.reset, "ax", @progbits
        .globl  resetEntry
        .type   resetEntry, @function
resetEntry:
        mov     #stackEnd, r1
        mov     #bssStart, r12
.Lclear:
        cmp     #bssEnd, r12
        jhs     .LcopyData
        clr.b   0(r12)
        inc     r12
        jmp     .Lclear
.LcopyData:
        mov     #dataStart, r12
        mov     #dataLoad, r13
.Lcopy:
        cmp     #dataEnd, r12
        jhs     .Lrun
        mov.b   @r13+, r14
        mov.b   r14, 0(r12)
        inc     r12
        jmp     .Lcopy
.Lrun:
        call    #main
; main does not return. If it does, the watchdog resets the device.
.Lhalt:
        jmp     .Lhalt

; The callee saves r4 to r10 (MSP430 EABI, SLAA534), so a frame saves r11 to r15.
        .macro  FRAME name, handler
        .section .text.\name, "ax", @progbits
        .globl  \name
        .type   \name, @function
\name:
        push    r11
        push    r12
        push    r13
        push    r14
        push    r15
        call    #\handler
        pop     r15
        pop     r14
        pop     r13
        pop     r12
        pop     r11
        bic     #CPUOFF, 0(r1)
        reti
        .endm

        FRAME   tickFrame, handleTick
        FRAME   transmitFrame, handleTransmit
        FRAME   receiveFrame, handleReceive

; An interrupt that nothing enables. It returns; if its flag stays set, the watchdog resets the device.
        .section .text.unexpected, "ax", @progbits
unexpected:
        reti

; SLAS735, "Interrupt Vector Addresses".
        .section .vectors, "a", @progbits
        .word   unexpected      ; FFE0
        .word   unexpected      ; FFE2
        .word   unexpected      ; FFE4 port 1
        .word   unexpected      ; FFE6 port 2
        .word   unexpected      ; FFE8
        .word   unexpected      ; FFEA ADC10
        .word   transmitFrame   ; FFEC USCI_A0 and USCI_B0 transmit
        .word   receiveFrame    ; FFEE USCI_A0 receive, USCI_B0 state change
        .word   unexpected      ; FFF0 Timer0_A3, other than CCR0
        .word   tickFrame       ; FFF2 Timer0_A3 CCR0
        .word   unexpected      ; FFF4 watchdog as interval timer
        .word   unexpected      ; FFF6 comparator
        .word   unexpected      ; FFF8 Timer1_A3, other than CCR0
        .word   unexpected      ; FFFA Timer1_A3 CCR0
        .word   unexpected      ; FFFC NMI
        .word   resetEntry      ; FFFE reset
