import { mount } from 'svelte';
import '../../lib/base.css';
import Arm from './Arm.svelte';

mount(Arm, { target: document.getElementById('app')! });
